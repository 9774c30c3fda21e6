"""Alternatives that change columns together: resolved alike by two codes, bounded over all, chosen for the better."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest

from planner.bounds import held_at_end, largest_task
from planner.errors import IllegalPlan
from planner.problem import BACKWARD, NEVER, Choices, Csr, Problem, liveness
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Plan
from planner.problem.recompute import base_order
from planner.search import portfolio
from planner.search.scores import goal_score
from planner.verify.checker import apply_choices, check
from tests.planner.drawn import problem_of
from tests.planner.random_problems import random_problem


def table_of(groups: list[list[dict[str, dict]]], kinds: list[int]) -> Choices:
    """Groups of alternatives as {"tasks": {task: (cost, workspace, reads)}, "sizes": {buffer: bytes}}."""
    rows = [alternative for group in groups for alternative in group]
    entries = [entry for row in rows for entry in row.get("tasks", {}).values()]
    return Choices(
        np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
        np.array(kinds, np.int64),
        Csr.of([list(row.get("tasks", {})) for row in rows]),
        np.array([cost for cost, _, _ in entries], np.int64),
        np.array([workspace for _, workspace, _ in entries], np.int64),
        Csr.of([reads for _, _, reads in entries]),
        Csr.of([list(row.get("sizes", {})) for row in rows]),
        np.array([size for row in rows for size in row.get("sizes", {}).values()], np.int64),
    )


def with_random_choices(rng: random.Random, problem: Problem) -> Problem:
    """Up to three groups on tasks and buffers of their own."""
    tasks, buffers = list(range(problem.tasks)), list(range(problem.buffers))
    rng.shuffle(tasks)
    rng.shuffle(buffers)
    groups: list[list[dict]] = []
    for _ in range(rng.randint(1, 3)):
        own_tasks, own_buffers = tasks[:2], buffers[:2]
        del tasks[:2], buffers[:2]
        group: list[dict] = [{}]
        for _ in range(rng.randint(1, 3)):
            changed = {
                t: (rng.randint(0, 9), rng.randint(0, 5), _some_reads(rng, problem, t))
                for t in own_tasks
                if rng.random() < 0.8
            }
            group.append({"tasks": changed, "sizes": {b: rng.randint(0, 8) for b in own_buffers}})
        groups.append(group)
    return dataclasses.replace(problem, choices=table_of(groups, list(range(len(groups)))))


def _some_reads(rng: random.Random, problem: Problem, task: int) -> list[int]:
    row = problem.reads[task].tolist()
    return [b for b in row if rng.random() < 0.7]


def vectors(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(count) for count in problem.choices.counts().tolist())))


COLUMNS = ("cost", "workspace", "size")


def test_evaluator_and_checker_resolve_a_choice_to_the_same_columns():
    rng = random.Random(3)
    for _ in range(150):
        problem = with_random_choices(rng, random_problem(rng))
        for vector in vectors(problem):
            one, other = resolve_choices(problem, vector), apply_choices(problem, vector)
            assert all(getattr(one, name).tolist() == getattr(other, name).tolist() for name in COLUMNS)
            assert one.reads.lists() == other.reads.lists()


def test_the_first_alternative_of_every_group_is_what_the_columns_say():
    rng = random.Random(4)
    problem = with_random_choices(rng, random_problem(rng))
    plain = resolve_choices(problem)
    assert all(getattr(plain, name).tolist() == getattr(problem, name).tolist() for name in COLUMNS)
    assert len(plain.choices) == 0


def test_bounds_of_the_relaxed_columns_hold_for_every_choice():
    rng = random.Random(5)
    for _ in range(150):
        problem = with_random_choices(rng, random_problem(rng))
        low = relax_choices(problem)
        for vector in vectors(problem):
            plain = resolve_choices(problem, vector)
            assert largest_task.bound(low).bytes <= largest_task.bound(plain).bytes
            assert held_at_end.bound(low) <= held_at_end.bound(plain)
            assert low.cost.sum() <= plain.cost.sum()


def test_a_vector_of_another_length_or_an_unknown_alternative_is_refused():
    problem = dataclasses.replace(problem_of([[]], [[0]]), choices=table_of([[{}, {"sizes": {0: 5}}]], [0]))
    for wrong in ((0, 0), (2,), (-1,)):
        with pytest.raises(IllegalPlan):
            resolve_choices(problem, wrong)
        with pytest.raises(IllegalPlan):
            apply_choices(problem, wrong)


def layers(count: int) -> Problem:
    """Layers F0 .. Fn, Gn .. G0 that may store 10 bytes for each other, or 4 for 3 more ticks, or 1 for 8."""
    #   F0 ──▶ F1 ──▶ ... ──▶ G1 ──▶ G0        saved: F_i ──▶ G_i
    n = 2 * count
    reads = [[] if not i else [i - 1] for i in range(count)]
    reads += [[n - 1 - i + count, i] for i in reversed(range(count))]
    saved = list(range(n, n + count))
    writes = [[i, saved[i]] for i in range(count)] + [[count + i] for i in range(count)]
    for i in range(count):
        g = n - 1 - i
        reads[g] = [g - 1, saved[i]]
    groups = [
        [
            {},
            {"tasks": {n - 1 - i: (4, 0, reads[n - 1 - i])}, "sizes": {saved[i]: 4}},
            {"tasks": {n - 1 - i: (9, 0, reads[n - 1 - i])}, "sizes": {saved[i]: 1}},
        ]
        for i in range(count)
    ]
    problem = problem_of(
        reads,
        writes,
        n + count,
        size=[1] * n + [10] * count,
        phase=[0] * count + [BACKWARD] * count,
        repeat=[NEVER] * n,
    )
    return dataclasses.replace(problem, choices=table_of(groups, [0] * count))


def found(problem: Problem, goal: Goal) -> Candidate:
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=20)
    return portfolio.search(problem, goal, "auto", monitor)


@pytest.mark.parametrize("budget", [84, 60, 50, 42, 30, 20, 11])
def test_layers_are_chosen_to_the_budget_at_nearly_the_least_time(budget: int):
    problem = layers(8)
    here = found(problem, Goal(budget_bytes=budget))
    plain = resolve_choices(problem, here.choices)
    peak, cost = liveness.peak(plain, here.order), liveness.cost(plain, here.order)
    order = base_order(problem)
    every = [resolve_choices(problem, v) for v in itertools.product(range(3), repeat=8) if list(v) == sorted(v)]
    fitting = [liveness.cost(p, order) for p in every if liveness.peak(p, order) <= budget]
    assert peak <= budget
    assert cost <= min(fitting) + 3


def test_a_choice_is_reproducible_and_its_plan_passes_the_checker():
    problem, goal = layers(6), Goal(budget_bytes=30)
    one, other = found(problem, goal), found(problem, goal)
    assert one.choices == other.choices and one.order.tolist() == other.order.tolist()
    plain = resolve_choices(problem, one.choices)
    lives = liveness.lifetimes(plain, one.order)
    plan = Plan(
        one.order,
        lives,
        liveness.profile(plain, one.order, lives),
        liveness.score(plain, one.order, 30),
        "auto",
        0,
        choices=one.choices,
    )
    check(problem, goal, plan)
    with pytest.raises(IllegalPlan):
        check(problem, goal, dataclasses.replace(plan, choices=(0,) * 6))


def test_an_overhead_is_counted_from_the_first_alternatives():
    problem = layers(8)
    here = found(problem, Goal(max_overhead=0.5))
    plain = resolve_choices(problem, here.choices)
    assert liveness.cost(plain, here.order) <= problem.cost.sum() * 1.5
    assert liveness.peak(plain, here.order) <= 70


def test_planners_that_know_no_budget_plan_the_first_alternatives():
    problem, goal = layers(4), Goal(budget_bytes=5)
    monitor = Monitor(lambda order: goal_score(problem, goal, order))
    assert portfolio.search(problem, goal, "as_given", monitor).choices == ()


def test_alternatives_of_tasks_that_need_not_run_change_nothing():
    problem = dataclasses.replace(
        problem_of([[]], [[0]], optional=[True]),
        choices=table_of([[{}, {"tasks": {0: (0, 5, [])}, "sizes": {0: 9}}]], [0]),
    )
    for planner in ("auto", "greedy"):
        for goal in (Goal(0), Goal(1), Goal(max_overhead=0.1)):
            monitor = Monitor(lambda order, goal=goal: goal_score(problem, goal, order), iterations=20)
            assert portfolio.search(problem, goal, planner, monitor).order.tolist() == []
