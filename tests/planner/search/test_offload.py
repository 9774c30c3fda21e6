"""The search with copies against the least makespan of small problems."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from planner.algorithms.offload.moves import improved
from planner.algorithms.offload.placing import with_copies_placed
from planner.problem import liveness, schedule
from planner.problem.copies import Link, copyable, with_copies
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Score
from planner.problem.recompute import base_order
from tests.planner.copy_problems import (
    MAX_TASKS_WITH_EVERYTHING,
    excess,
    small_copy_problem,
    small_overlap_problem,
    with_everything,
)
from tests.planner.random_problems import training_problem


def excesses(seeds: range | list[int]) -> list[float]:
    """Of the problem of each seed: found makespan over the least one, less 1; infinite for a missed budget."""
    return [excess(*small_copy_problem(random.Random(seed))) for seed in seeds]


def test_moves_find_copies_and_recomputations_that_help_only_together() -> None:
    #   70: task 4 writes u, which is copied; between both copies task 2 is recomputed, so that neither 2 nor u is held
    copies, goal = small_copy_problem(random.Random(70))
    monitor = Monitor(lambda order: Score(0, 0, 0), iterations=3_000)
    found = improved(copies, goal, base_order(copies.original, False), monitor)
    assert schedule.score(copies.problem, goal, found)[:2] == (0, 23)


def test_moves_recompute_from_a_buffer_that_had_no_later_use() -> None:
    #   1065: only task 1 reads the copied buffer 0, whose task runs once; task 1 is recomputed after a fetch
    copies, goal = small_copy_problem(random.Random(1065), with_everything, MAX_TASKS_WITH_EVERYTHING)
    monitor = Monitor(lambda order: Score(0, 0, 0), iterations=3_000)
    found = improved(copies, goal, base_order(copies.original, False), monitor)
    assert schedule.score(copies.problem, goal, found)[:2] == (0, 26)


def test_moves_run_another_writer_of_the_same_buffer_instead() -> None:
    #   531: task 0 and the optional task 6, which takes half as long, write the same buffer; the order runs 0 again
    copies, goal = small_copy_problem(random.Random(531), with_everything, MAX_TASKS_WITH_EVERYTHING)
    order = np.array([0, 1, 2, 6, 3, 4, 7, 1, 2, 8, 0, 5])
    assert schedule.score(copies.problem, goal, order)[:2] == (0, 35)
    found = improved(copies, goal, order, Monitor(lambda order: Score(0, 0, 0), iterations=500))
    assert schedule.score(copies.problem, goal, found)[:2] == (0, 33)


def test_placed_copies_fit_in_the_host_memory() -> None:
    copied = 0
    for seed in range(30):
        problem = training_problem(random.Random(seed), 9)
        copies = with_copies(problem, Link(8, 8), copyable(problem))
        order = base_order(problem, True)
        budget = liveness.peak(problem, order) * 2 // 3
        for host_bytes in (8, 30):
            placed = with_copies_placed(copies, order, budget, host_bytes, lambda: False)
            plan = schedule.evaluate(copies.problem, Goal(host_bytes=host_bytes), placed, "test")
            assert plan.schedule is not None and plan.schedule.host_bytes.max() <= host_bytes
            copied += len(placed) > len(order)
    assert copied > 30


@pytest.mark.heavy
def test_plans_with_copies_are_the_fastest_of_more_small_problems() -> None:
    #   48: a copy; 75, 223: a copy and recomputations beside it, without which no plan is within the budget
    #   150: two choices that save nothing alone, among many moves that change nothing
    assert not any(excesses([*range(12), 48, 75, 150, 223]))


@pytest.mark.heavy
def test_moves_recompute_between_copies_that_no_step_was_between() -> None:
    #   531: no step is between both uses of buffer 4 until tasks 1 and 2 are recomputed there
    copies, goal = small_copy_problem(random.Random(531), with_everything, MAX_TASKS_WITH_EVERYTHING)
    assert excess(copies, goal) == 0


@pytest.mark.heavy
def test_plans_with_copies_beside_optional_tasks_collectives_and_alternatives_are_the_fastest() -> None:
    problems = [small_copy_problem(random.Random(s), with_everything, MAX_TASKS_WITH_EVERYTHING) for s in range(5)]
    assert any(problem.original.optional.any() and len(problem.problem.choices) for problem, _ in problems)
    assert not any(itertools.starmap(excess, problems))


@pytest.mark.heavy
def test_plans_with_collectives_beside_compute_are_the_fastest() -> None:
    #   146: three runs slide together, and every order between takes longer
    problems = [small_overlap_problem(random.Random(seed)) for seed in [*range(25), 137, 146]]
    assert any(len(copies.buffer) for copies, _ in problems) and any(not len(copies.buffer) for copies, _ in problems)
    assert not any(itertools.starmap(excess, problems))


def test_a_walk_over_the_budget_returns_to_its_best_order() -> None:
    copies, goal = small_copy_problem(random.Random(150))
    monitor = Monitor(lambda order: Score(0, 0, 0), iterations=3_000)
    found = improved(copies, goal, base_order(copies.original, False), monitor)
    assert schedule.score(copies.problem, goal, found)[:2] == (0, 33)
