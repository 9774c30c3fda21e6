"""A tree over several steps proves no more than the optimum, and often all of it."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from graph.cancellation import CancellationError, Deadline, cancellation_scope
from planner.bounds import claims, multi_step_tree, step_branch_and_bound, step_conflicts, step_cut
from planner.bounds.multi_step_lp import step_windows
from planner.bounds.multi_step_tree import ITERATIONS_PER_PROGRAM
from planner.bounds.step_conflicts import conflicting_steps, overfull_steps
from planner.bounds.step_lp import StepLp
from planner.bounds.step_network import UNKNOWN, StepModel
from planner.problem import Problem, liveness
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from tests.planner.bounds.test_multi_step_lp import MODES
from tests.planner.bounds.test_step_cut import suited, there_and_back
from tests.planner.drawn import drawn
from tests.planner.optimum import least_cost


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.heavy)])
def test_a_tree_over_several_steps_proves_no_more_than_the_optimum(count: int):
    rng = random.Random(count)
    further = met = exact = 0
    for i in range(count):
        problem, goal = suited(rng, 6) if i % 2 else there_and_back(rng), rng.choice(MODES)
        budget = liveness.peak(problem, base_order(problem, goal.strict_phases)) * rng.randint(12, 19) // 20
        cuts = step_cut.best_cuts(problem, goal, budget, 4)
        model = StepModel(problem, goal, budget)
        root = step_branch_and_bound.make_tree(model, cuts[0].task) if cuts else None
        if root is None:
            continue
        least = least_cost(problem, goal, budget)
        tasks = [*(cut.task for cut in cuts), *rng.sample(range(problem.tasks), 2)]
        tasks = [task for task in tasks if not problem.optional[task]]
        needed = partial(float, math.inf if least is None else least)
        with an_hour() if i % 3 else nullcontext():
            claim = multi_step_tree.bound(model, root, tasks, needed)
        if claim is None:
            continue
        assert claims.rejection_reason(problem, [claim]) == ""
        assert least is None or claim["value"] <= least
        single = step_branch_and_bound.tree_claim(model, root)
        further += single is None or claim["value"] > single["value"]
        met += claim["value"] == least
        exact += '"rounded": [{' in json.dumps(claim)  # grains alone do not prove it
    assert further and met > count // 6 and (exact or count < 1000)


def an_hour() -> AbstractContextManager[None]:
    """Scope with a time limit that is never reached."""
    return cancellation_scope(Deadline(threading.Event(), time.monotonic() + 3600))


def two_repeats() -> Problem:
    #   a ── b ── c ── d ── e ── f ── g ── h      with room for two large values and a small one, a is recomputed
    #    ╰─────────────╯    ╰─────────────╯       after c and e after g; the step of each proves one of them
    return drawn("a>b b>c c>d a>d d>e e>f f>g g>h e>h", size=dict.fromkeys("abcefg", 4) | dict.fromkeys("dh", 1))


def test_a_tree_over_two_steps_proves_two_recomputations():
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    once = int(problem.cost.sum())
    model, steps = StepModel(problem, goal, 9), [cut.task for cut in step_cut.best_cuts(problem, goal, 9, 4)]
    root = step_branch_and_bound.make_tree(model, steps[0])
    assert root is not None
    single = step_branch_and_bound.tree_claim(model, root)
    joint = multi_step_tree.bound(model, root, steps, lambda: once + 2)
    assert single is not None and joint is not None
    assert (single["value"], joint["value"], least_cost(problem, goal, 9)) == (once + 1, once + 2, once + 2)


def test_a_step_whose_recomputation_the_best_choice_of_another_does_not_contain_conflicts_with_it():
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    model = StepModel(problem, goal, 9)
    root = step_branch_and_bound.make_tree(model, 2)
    assert root is not None and conflicting_steps(model, root, 9) == []  # only within a time limit
    with an_hour():
        assert conflicting_steps(model, root, 9) == [6]


def test_the_order_of_the_best_choice_of_a_step_tells_a_further_step():
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    once = int(problem.cost.sum())
    model = StepModel(problem, goal, 9)
    root = step_branch_and_bound.make_tree(model, 2)
    assert root is not None and overfull_steps(model, root, 9) == []  # only within a time limit
    with an_hour():
        assert overfull_steps(model, root, 9) == [6]
        joint = multi_step_tree.bound(model, root, [6], lambda: once + 2, least=1)
        assert joint is not None and (joint["value"], joint["moments"]) == (once + 2, [2, 6])
        assert multi_step_tree.bound(model, root, [6], lambda: once + 2, least=2) is None
        assert multi_step_tree.bound(model, root, [], lambda: once + 2, least=1) is None


def test_an_overfull_step_that_may_run_on_either_side_of_the_other_is_none(monkeypatch: pytest.MonkeyPatch):
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    model = StepModel(problem, goal, 9)
    root = step_branch_and_bound.make_tree(model, 2)
    assert root is not None
    known = model.known(2)
    known[6] = UNKNOWN
    monkeypatch.setattr(model, "known", lambda task: known)
    with an_hour():
        assert overfull_steps(model, root, 9) == []


def test_conflicts_are_looked_for_at_steps_over_the_budget(monkeypatch: pytest.MonkeyPatch):
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    model = StepModel(problem, goal, 9)
    root = step_branch_and_bound.make_tree(model, 2)
    assert root is not None
    tried = list[list[int]]()

    def noted(model: StepModel, chain: list[int], *args: Any, **kwargs: Any) -> StepLp:
        tried.append(chain)
        return StepLp(model, chain, *args, **kwargs)

    monkeypatch.setattr(step_conflicts, "StepLp", noted)
    with an_hour():
        assert conflicting_steps(model, root, 9) == [6]
    assert [2, 6] in tried and [2, 4] not in tried and len(tried) < problem.tasks - 1


def test_a_branch_without_a_solution_costs_more_than_any_plan_and_leaves_the_next_as_it_was():
    problem, goal = two_repeats(), Goal(9, order_is_given=True)
    program = StepLp(StepModel(problem, goal, 9), [2, 6], step_windows(2), branches=True)
    neither = {name: 0 for name in program.column if name[0] in ("L", "A") and name[-1] == 0}
    before, worthless, after = program.solved({}), program.solved(neither), program.solved({})
    assert before is not None and worthless is not None and after is not None
    assert worthless.ticks > problem.cost.sum() > before.ticks > 0
    assert after.ticks == pytest.approx(before.ticks)


def test_a_bound_is_enough_once_it_exceeds_the_last_possible_cost_below():
    assert 8 < multi_step_tree.enough(10, 2) < 8.01
    assert multi_step_tree.enough(8193, 1) > 8192  # though a bound of 8192 is nearly as much
    assert 1e12 * (1 - 1e-8) < multi_step_tree.enough(1e12, 1) < 1e12  # solvers do not tell one tick more from less
    assert multi_step_tree.enough(math.inf, 1) == math.inf


def test_windows_between_all_steps_prove_more_than_those_to_the_next():
    #   a ── b ── c ── d ── e      at steps g to j on the way back: a value that is live by half at one of them is
    #   j ── i ── h ── g ── f      needed at a later one
    size, cost = (dict(zip("abcdefghij", map(int, row), strict=True)) for row in ("1412141222", "1221324422"))
    problem = drawn("a>b b>c c>d d>e e>f f>g d>g g>h c>h h>i b>i i>j a>j", size=size, cost=cost)
    model, chain = StepModel(problem, Goal(8, order_is_given=True), 8), [6, 7, 8, 9]
    ticks = []
    assert multi_step_tree.windows_of(4) == step_windows(4)
    with an_hour():
        for windows in (step_windows(4), multi_step_tree.windows_of(4)):
            solution = StepLp(model, chain, windows).solved({})
            assert solution is not None
            ticks.append(solution.ticks)
    assert ticks == pytest.approx([3.5, 4.0])


def test_a_linear_program_is_not_built_after_the_deadline():
    model = StepModel(two_repeats(), Goal(9, order_is_given=True), 9)
    program, ended = StepLp(model, [2, 6], step_windows(2)), threading.Event()
    ended.set()
    for build in (lambda: StepLp(model, [2, 6], step_windows(2)), lambda: program.solved({})):
        with cancellation_scope(ended, spare=8), pytest.raises(CancellationError):
            build()


def test_an_iteration_limit_limits_the_linear_programs(monkeypatch: pytest.MonkeyPatch):
    problem, solved, count = two_repeats(), StepLp.solved, 0

    def counted(*given: Any) -> Any:
        nonlocal count
        count += 1
        return solved(*given)

    monkeypatch.setattr(StepLp, "solved", counted)
    monkeypatch.setattr(step_branch_and_bound, "likely_grains", lambda model, count: [])
    goal, counts = Goal(9, order_is_given=True), []
    steps = [cut.task for cut in step_cut.best_cuts(problem, goal, 9, 4)]
    for iterations in (0, ITERATIONS_PER_PROGRAM, None):
        model, count = StepModel(problem, replace(goal, iterations=iterations), 9), 0
        root = step_branch_and_bound.make_tree(model, steps[0])
        assert root is not None
        multi_step_tree.bound(model, root, steps, lambda: math.inf)
        counts.append(count)
    assert counts[:2] == [0, 1] and counts[2] > 1


def test_steps_without_an_order_between_them_are_not_used_together():
    #   a ─┬─ b ─┬─ d      either of b and c may run first
    #      ╰─ c ─╯
    model = StepModel(drawn("a>b a>c b>d c>d", size=dict.fromkeys("abcd", 1)), Goal(3), 3)
    assert multi_step_tree.comparable(model, [1, 2, 3, 0]) == [0, 1, 3]


def test_the_best_choice_of_a_step_is_whole_and_within_the_budget():
    #   one byte too many: b alone is dropped, though a fraction of the cheaper one would do
    problem = drawn("a>c b>c c>d d>e e>f a>f b>f", size={**dict.fromkeys("abcde", 4), "f": 1}, cost={"a": 9, "b": 7})
    budget = liveness.peak(problem, base_order(problem)) - 1
    task = step_cut.bound(problem, Goal(budget), budget).task
    choice = step_branch_and_bound.best_choice(StepModel(problem, Goal(budget), budget), task)
    assert choice is not None
    assert (choice.ticks, choice.bytes <= 0, 1 in choice.live, 0 in choice.live) == (7, True, False, True)
