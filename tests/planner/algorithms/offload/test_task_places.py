"""Optional tasks are added and removed where the rules of an order allow it."""

from __future__ import annotations

import random

import numpy as np

from planner.algorithms.offload.task_places import TaskPlaces
from planner.errors import IllegalPlan
from planner.problem import Problem, liveness
from planner.problem.plan import Goal
from tests import oracles
from tests.planner.random_problems import random_order, random_problem


def reads_are_written(problem: Problem, order: list[int]) -> bool:
    try:
        liveness.bound_instances(problem, np.array(order, np.int64))
    except IllegalPlan:
        return False
    return True


def test_an_optional_task_begins_and_leaves_where_the_order_stays_legal() -> None:
    rng, began, left = random.Random(3), [0, 0], [0, 0]
    while min(*began, *left) < 40:
        problem = random_problem(rng)
        goal = Goal(order_is_given=rng.random() < 0.3, strict_phases=rng.random() < 0.5)
        order, optional = random_order(rng, problem), TaskPlaces(problem, goal)
        if not optional.optional or not oracles.legal(problem, goal, order):
            continue
        task, place = rng.choice(optional.optional), rng.randint(0, len(order))
        if task in order:
            changed = [t for t in order if t != task]
            may = optional.may_leave(np.array(order, np.int64), task)
            left[may] += 1
        else:
            changed = [*order[:place], task, *order[place:]]
            may = optional.may_begin(np.array(order, np.int64), task, place)
            began[may] += 1
        assert oracles.legal(problem, goal, changed) == (may and reads_are_written(problem, changed))


def test_a_run_slides_where_the_order_stays_legal() -> None:
    rng, slid = random.Random(4), {(first, may): 0 for first in (False, True) for may in (False, True)}
    while min(slid.values()) < 100:
        problem = random_problem(rng)
        goal = Goal(order_is_given=rng.random() < 0.3, strict_phases=rng.random() < 0.5)
        order, places = random_order(rng, problem), TaskPlaces(problem, goal)
        if not order or not oracles.legal(problem, goal, order):
            continue
        # Illegal places of repeats are rare: one run of the order and all repeats that may have such places.
        for step in {rng.randrange(len(order)), *bound_repeats(problem, order)}:
            task, rest = order[step], [*order[:step], *order[step + 1 :]]
            is_first = task not in order[:step]
            for place in range(len(order)):
                if is_first == (task in rest[:place]):  # another run would be the first
                    continue
                may = (places.may_begin if is_first else places.may_repeat)(np.array(rest, np.int64), task, place)
                changed = [*rest[:place], task, *rest[place:]]
                assert oracles.legal(problem, goal, changed) == (may and reads_are_written(problem, changed))
                slid[is_first, may] += 1


def bound_repeats(problem: Problem, order: list[int]) -> list[int]:
    """Steps of repeats of tasks of which every run precedes or follows every run of another."""
    pairs = [(a, b) for a in range(problem.tasks) for b in problem.after_every[a]]
    bound = {int(task) for pair in pairs for task in pair}
    return [step for step, task in enumerate(order) if task in bound and task in order[:step]]
