"""One decision for several sets of sizes: the same runs, each order legal, no bound above it."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.algorithms.annealing.reorder_runs import reorder_runs, same_runs
from planner.bounds import step_cut
from planner.formulation.formulation import Formulation
from planner.formulation.lower_bound import LowerBound
from planner.formulation.memory_accounting import MemoryAccounting
from planner.lowering.lowered_graph import LoweredGraph
from planner.pipeline.multi_shape_search import Decision, MultiShapeSearch
from planner.problem import NEVER, Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from planner.verify.checker import check, check_order
from tests.contracts.test_every_planner import is_runnable
from tests.planner.drawn import drawn, problem_of
from tests.planner.problem.test_alternatives import with_random_choices
from tests.planner.random_problems import random_problem, returning_problem


def question(problem: Problem, goal: Goal) -> Formulation:
    """Formulation with the single-step bound, without a graph."""
    nothing: Any = None
    lowered = LoweredGraph(problem, nothing, [], [], [], [], [], nothing)
    once = int(resolve_choices(problem).cost[~problem.optional].sum())
    plain = not len(problem.choices)
    least = step_cut.bound(problem, goal, goal.budget_bytes).ticks if goal.budget_bytes and plain else 0
    bound = LowerBound(once if plain else 0, once if plain else 0, 0, "", "free", "solver", -1)
    bound = replace(bound, cost=bound.single_run_cost + least)
    baseline = evaluate(lowered.problem, goal, base_order(problem, goal.strict_phases), "as_given")
    return Formulation(lowered, goal, MemoryAccounting("everything", 0, 0), goal.budget_bytes, bound, baseline, 0)


def decided(problems: list[Problem], goal: Goal) -> tuple[Decision, MultiShapeSearch]:
    deciding = MultiShapeSearch([question(p, goal) for p in problems], "auto", threading.Event(), lambda *_: None)
    return deciding.run(), deciding


def other_sizes(rng: random.Random, problem: Problem) -> Problem:
    """The same tasks with other bytes and ticks."""
    size, workspace, cost = (
        np.array([int(n * rng.uniform(0.3, 3)) for n in column.tolist()], np.int64)
        for column in (problem.size, problem.workspace, problem.cost)
    )
    return replace(problem, size=size, workspace=workspace, cost=cost)


@pytest.mark.parametrize("seed", range(12))
def test_a_decision_has_the_same_runs_in_every_set_and_each_order_is_legal(seed: int):
    rng = random.Random(seed)
    first = random_problem(rng, 10) if seed % 2 else returning_problem(rng, 6)
    while not is_runnable(first):
        first = random_problem(rng, 10)
    if seed % 6 == 5:
        first = with_random_choices(rng, first)
    problems = [first, *(other_sizes(rng, first) for _ in range(2))]
    mode = Goal(order_is_given=seed % 5 == 0, strict_phases=seed % 3 > 0, iterations=60)
    peaks = [liveness.peak(resolve_choices(p), base_order(p, mode.strict_phases)) for p in problems]
    for part in (0, 0.6, 0.8):
        goal = replace(mode, budget_bytes=int(part * max(peaks)))
        decision, deciding = decided(problems, goal)
        for problem, asked, order in zip(problems, deciding.formulations, decision.orders, strict=True):
            plain = resolve_choices(problem, decision.choices)
            check_order(plain, goal, order.tolist())
            check(problem, goal, asked.evaluated(order, decision.planner, decision.choices))
            assert same_runs(plain, decision.orders[0], order)
        assert deciding.worst is not None
        given = [deciding.measured(k, q.baseline.order, ()) for k, q in enumerate(deciding.formulations)]
        assert deciding.worst <= tuple(max(column) for column in zip(*given, strict=True))
        if goal.budget_bytes and not deciding.worst.bytes_over_budget:
            assert deciding.worst.overhead >= max(deciding.lower_bounds)
            scores = [goal_score(p, goal, o, decision.choices) for p, o in zip(problems, decision.orders, strict=True)]
            assert max(score.peak_bytes for score in scores) <= goal.budget_bytes


def two_buffers_over_a_peak() -> tuple[Problem, Problem]:
    """a and b wait while p runs, and are read behind it; in the second set b is as large as a in the first.

    a ────────────╮
    b ────────────┤
    c ── p ── q ──┴── z
    """
    problem = drawn("a>z b>z c>p p>q q>z")
    one, two = ([40, 5, 60, 20, 1, 1], [5, 40, 60, 20, 1, 1])
    return replace(problem, size=np.array(one)), replace(problem, size=np.array(two))


def test_recomputations_that_any_set_needs_happen_in_every_set():
    one, two = two_buffers_over_a_peak()
    goal = Goal(89, order_is_given=True, iterations=400)  # c and p, and the smaller of a and b
    alone, _ = decided([one], goal)
    assert (
        goal_score(one, goal, alone.orders[0]).bytes_over_budget
        == 0
        < goal_score(two, goal, alone.orders[0]).bytes_over_budget
    )
    both, deciding = decided([one, two], goal)
    assert deciding.worst is not None and deciding.worst.bytes_over_budget == 0
    assert has_one_order(both) and np.bincount(both.orders[0])[:2].tolist() == [2, 2]


def has_one_order(decision: Decision) -> bool:
    return all(np.array_equal(order, decision.orders[0]) for order in decision.orders)


def two_branches(swapped: bool) -> Problem:
    """Nothing runs twice. The branch that peaks high and leaves little has to run first, and which it is depends.

    x ──▶ p ──▶ q ──╮
    x ──▶ r ──▶ s ──┴──▶ z
    """
    high, low = [10, 1], [6, 5]
    branches = [*low, *high] if swapped else [*high, *low]
    return problem_of(
        [[0], [1], [0], [3], [2, 4]], [[1], [2], [3], [4], [5]], size=[0, *branches, 1], repeat=[NEVER] * 5
    )


def test_a_set_may_need_an_order_of_its_own():
    problems = [two_branches(False), two_branches(True)]
    goal = Goal(12, iterations=2000)
    for order in ([0, 1, 2, 3, 4], [2, 3, 0, 1, 4]):
        assert max(goal_score(p, goal, np.array(order)).bytes_over_budget for p in problems) > 0
    decision, deciding = decided(problems, goal)
    assert deciding.worst is not None and deciding.worst[:2] == (0, 0)
    assert not has_one_order(decision)
    given, alone = decided(problems, replace(goal, order_is_given=True))
    assert alone.worst is not None and alone.worst.bytes_over_budget > 0 and has_one_order(given)


@pytest.mark.parametrize("seed", range(20))
def test_another_order_of_the_same_runs_is_legal_and_no_worse(seed: int):
    rng = random.Random(seed)
    problem = returning_problem(rng, 6)
    while not is_runnable(problem):
        problem = returning_problem(rng, 6)
    goal = Goal(0, strict_phases=seed % 2 == 0, iterations=60)
    budget = Goal(liveness.peak(problem, base_order(problem, goal.strict_phases)) * 7 // 10, iterations=60)
    decision, _ = decided([problem], replace(budget, strict_phases=goal.strict_phases))
    order = decision.orders[0]
    monitor = Monitor(lambda o: goal_score(problem, goal, o), iterations=60)
    found = reorder_runs(problem, goal, order, lambda o: goal_score(problem, goal, o), monitor)
    check_order(problem, goal, found.tolist())
    assert same_runs(problem, order, found)
    assert liveness.peak(problem, found) <= liveness.peak(problem, order)


def test_runs_that_read_other_copies_are_not_the_same():
    problem = drawn("a>b a>c b>d c>d")
    one = np.array([0, 1, 0, 2, 3])
    assert same_runs(problem, one, one)
    assert not same_runs(problem, one, np.array([0, 0, 1, 2, 3]))
    assert not same_runs(problem, one, np.array([0, 1, 2, 3]))


def test_a_stop_gives_the_best_decision_so_far():
    one, two = two_buffers_over_a_peak()
    stop = threading.Event()
    deciding = MultiShapeSearch(
        [question(p, Goal(84, order_is_given=True)) for p in (one, two)], "auto", stop, lambda *_: stop.set()
    )
    assert len(deciding.run().orders) == 2
