"""No order peaks below the cut of a moment, whether tasks run once or again."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest

from planner.bounds import peak_cut
from planner.errors import IllegalPlan
from planner.problem import Problem, liveness
from planner.problem.plan import Goal
from planner.verify.checker import check_order
from tests.planner.bounds.test_step_cut import suited
from tests.planner.drawn import drawn, problem_of
from tests.planner.optimum import least_cost


def lowest(problem: Problem, goal: Goal) -> int | None:
    """The lowest peak of any order that runs every task once; None where there is no legal one."""
    peaks = []
    for order in permutations(range(problem.tasks)):
        try:
            check_order(problem, goal, list(order))
        except IllegalPlan:
            continue
        peaks.append(liveness.peak(problem, np.array(order, np.int64)))
    return min(peaks, default=None)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.heavy)])
def test_no_order_peaks_below_the_cut(count: int):
    rng = random.Random(count)
    met = 0
    for _ in range(count):
        problem, goal = suited(rng, 5), Goal(order_is_given=rng.random() < 0.3, strict_phases=rng.random() < 0.5)
        once, again = (peak_cut.bound(problem, goal, repeats) for repeats in (False, True))
        best = lowest(problem, goal)
        assert best is None or once.bytes <= best
        met += best == once.bytes
        assert again.bytes < 1 or least_cost(problem, goal, again.bytes - 1) is None
    assert met > count // 2


def test_what_is_held_beside_a_task_counts():
    #   a ── b ── c ── d     a is held for d while c is made of b
    #    ╰─────────────╯
    problem = drawn("a>b b>c c>d a>d", size=dict.fromkeys("abcd", 4))
    found = peak_cut.bound(problem, Goal(), repeats=False)
    assert found.bytes == 12 == lowest(problem, Goal())


def test_nothing_to_run_has_no_cut():
    assert peak_cut.bound(problem_of([], []), Goal()) == peak_cut.PeakCut(0, -1)
