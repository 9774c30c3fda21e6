"""A timeline's bytes are the evaluator's after any moves, taken back or kept, and its order stays legal."""

from __future__ import annotations

import random

import numpy as np
import pytest

from planner.algorithms.annealing import move_kernels, parallel, reorder_kernels
from planner.algorithms.annealing import timeline_kernels as on
from planner.algorithms.annealing.timeline import fenced_sequence, order_of, timeline_of
from planner.algorithms.annealing.timeline_kernels import AnnealingTimeline
from planner.problem import DEVICE, RESIDENT, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Plan, Score
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from planner.verify.checker import check
from tests.contracts.test_every_planner import is_runnable
from tests.planner.drawn import drawn
from tests.planner.random_problems import random_problem, training_problem


def timeline(
    problem: Problem, limit: int, free: bool, strict: bool, margin: int = 0, weight: int = 0
) -> AnnealingTimeline:
    order = base_order(problem, strict)
    t = timeline_of(problem, order, limit, free, strict, seed=3)
    t.counters[[on.MARGIN, on.WEIGHT]] = margin, weight
    on.fill(t, fenced_sequence(problem, order, strict), 3)
    return t


def agree(problem: Problem, t: AnnealingTimeline, strict: bool, given: bool) -> None:
    """Bytes, bytes over the limit and ticks are those of the order, and the checker accepts it."""
    order = order_of(problem, t)
    runs = t.slot_run[t.slot_run >= 0]
    steps = t.runs[runs, on.TASK] < problem.tasks
    resident = int(problem.size[(problem.hold == RESIDENT) & (problem.space == DEVICE)].sum())
    lives = liveness.lifetimes(problem, order)
    profile = liveness.profile(problem, order, lives)
    assert (t.bytes[:-1][t.slot_run >= 0][steps] + resident == profile).all()
    over = t.bytes - t.counters[on.LIMIT]
    steep = np.maximum(over - t.counters[on.MARGIN], 0).sum()
    assert t.counters[on.OVER] == np.maximum(over, 0).sum() + t.counters[on.WEIGHT] * steep
    assert t.counters[on.TICKS] == problem.cost[order].sum()
    goal = Goal(strict_phases=strict, order_is_given=given)
    peak = int(profile.max(initial=resident))
    check(problem, goal, Plan(order, lives, profile, Score(peak, liveness.cost(problem, order), peak), "", 0))


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_moves_keep_the_bytes_right(seed: int, free: bool):
    rng = random.Random(seed)
    problem = random_problem(rng, 8) if seed % 2 else training_problem(rng, 6)
    while not is_runnable(problem):
        problem = random_problem(rng, 8)
    strict = seed % 3 > 0
    size = int(problem.size.sum())
    t = timeline(problem, size // 3, free, strict, size // 9, 7 * (seed % 4 // 2))
    agree(problem, t, strict, not free)
    stack = np.zeros(64, np.int64)
    for move in range(300):
        before = order_of(problem, t).tolist()
        if move_kernels.try_any(t, 50 if free else 0, stack) and move % 3:
            on.commit(t)
        else:
            on.undo(t)
            assert order_of(problem, t).tolist() == before
        agree(problem, t, strict, not free)


@pytest.mark.parametrize("seed", [141, 178])
def test_what_an_optional_task_that_does_not_run_would_hold_is_not_there(seed: int):
    problem = random_problem(random.Random(seed), 9)
    order = base_order(problem, seed % 3 > 0)
    assert len(order) < problem.tasks
    agree(problem, timeline(problem, int(problem.size.sum()) // 3, True, seed % 3 > 0), seed % 3 > 0, False)


def test_a_full_timeline_refuses_another_run():
    problem = training_problem(random.Random(1), 3)
    t = timeline(problem, 0, False, True)
    spare = len(t.runs) - int(t.counters[on.RUNS])
    task = int(np.flatnonzero(t.tasks[:, on.RECOMPUTABLE])[0])
    added = 0
    while on.add_repeat(t, task, on.END) >= 0:
        on.commit(t)
        added += 1
    assert 0 < added <= spare


def test_what_is_found_does_not_depend_on_the_clock():
    problem = training_problem(random.Random(2), 12)
    peak = liveness.peak(problem, base_order(problem))
    goal = Goal(peak * 85 // 100, iterations=60)
    plans = [
        parallel.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order), iterations=60)).tolist()
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert liveness.peak(problem, np.array(plans[0])) <= goal.budget_bytes


@pytest.mark.parametrize("behind", [True, False])
def test_a_first_run_takes_those_along_that_are_in_its_way(behind: bool):
    #   a ── b      a goes behind e with those that need it, or e before a with those it needs
    #   c ── d ── e
    problem = drawn("a>b c>d d>e")
    t = timeline(problem, 10, True, False)
    stack = np.zeros(64, np.int64)
    first, last, fence = (int(t.tasks[task, on.FIRST_RUN]) for task in (0, 4, 5))
    if behind:
        assert reorder_kernels.move_group_behind(t, first, fence, stack)
    else:
        assert reorder_kernels.move_group_before(t, last, first, stack)
    agree(problem, t, False, False)
    assert order_of(problem, t).tolist() == [2, 3, 4, 0, 1]
    on.undo(t)
    assert order_of(problem, t).tolist() == [0, 1, 2, 3, 4]


def test_a_run_that_may_not_move_keeps_its_group_where_it_is():
    #   a ── b
    #   c ── d ── e      d stays
    problem = drawn("a>b c>d d>e")
    t = timeline(problem, 10, True, False)
    first, last = (int(t.tasks[task, on.FIRST_RUN]) for task in (0, 4))
    t.tasks[3, on.MOVABLE] = 0
    assert not reorder_kernels.move_group_before(t, last, first, np.zeros(64, np.int64))
    assert order_of(problem, t).tolist() == [0, 1, 2, 3, 4]
