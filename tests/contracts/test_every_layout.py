"""What holds for every layout in the table."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from planner.errors import BadRequest, IllegalPlan
from planner.layout import LAYOUTS, place
from planner.problem import DEVICE, Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Plan
from planner.verify.checker import check
from tests import oracles
from tests.contracts.test_every_planner import planned
from tests.planner.drawn import drawn, order_of, problem_of
from tests.planner.random_problems import random_order, random_problem, training_problem

EVERY = pytest.mark.parametrize("name", LAYOUTS)


def placed(name: str, problem: Problem, order: np.ndarray, alignment: int) -> Plan:
    """The order as a plan with addresses, accepted by the checker."""
    lives = liveness.lifetimes(problem, order)
    size = np.where(problem.space == DEVICE, problem.size, 0)
    monitor = Monitor(lambda order: liveness.score(problem, order, 0), iterations=30)
    offsets, arena = place(name, lives, size, problem.workspace[order], alignment, monitor)
    score = liveness.score(problem, order, 0)
    plan = Plan(order, lives, liveness.profile(problem, order, lives), score, "test", 0, offsets, arena)
    check(problem, Goal(0, strict_phases=False), plan, alignment)
    return plan


@EVERY
def test_random_sequences_with_everything_are_placed_without_overlap(name):
    rng = random.Random(21)
    tried = 0
    while tried < 60:
        problem = random_problem(rng)
        order = random_order(rng, problem)
        if oracles.legal(problem, Goal(strict_phases=False), order):
            tried += 1
            placed(name, problem, np.array(order, np.int64), rng.choice([1, 4]))


@EVERY
def test_training_steps_waste_little_and_never_lie_below_the_peak(name):
    rng = random.Random(22)
    peaks = arenas = 0
    for layers in (2, 5, 9, 14):
        problem = training_problem(rng, layers)
        for planner in ("as_given", "segments"):
            plan = placed(name, problem, planned(planner, problem, Goal(0)).order, 1)
            assert plan.arena_bytes is not None and plan.arena_bytes >= plan.score.peak_bytes
            peaks, arenas = peaks + plan.score.peak_bytes, arenas + plan.arena_bytes
    assert arenas <= 1.02 * peaks


@EVERY
def test_a_chain_of_takeovers_lies_in_one_place(name):
    #   a ══ b ══ c      b and c take over what a had
    problem = drawn("a>b b>c", size={"a": 8, "b": 8, "c": 4}, takeover="a>b b>c")
    plan = placed(name, problem, order_of("abc"), 1)
    assert plan.offsets is not None and plan.offsets[:3].tolist() == [0, 0, 0]
    assert plan.arena_bytes == 8


@EVERY
def test_nothing_needs_no_arena(name):
    plan = placed(name, problem_of([], []), np.zeros(0, np.int64), 64)
    assert plan.arena_bytes == 0
    plan = placed(name, drawn("a>b", size=0), order_of("ab"), 64)
    assert plan.arena_bytes == 0 and plan.offsets is not None and (plan.offsets == -1).all()


@EVERY
def test_every_moved_instance_is_noticed(name):
    rng = random.Random(23)
    problem = training_problem(rng, 6)
    plan = placed(name, problem, np.arange(problem.tasks), 1)
    assert plan.offsets is not None
    noticed = 0
    for k in np.flatnonzero(plan.offsets >= 0).tolist():
        for delta in (-1, 1, plan.arena_bytes):
            moved = plan.offsets.copy()
            moved[k] += delta
            try:
                check(problem, Goal(0), dataclasses.replace(plan, offsets=moved))
            except IllegalPlan:
                noticed += 1
    # A few have room beside them, so one byte up or down is as good.
    assert noticed > 2 * (plan.offsets >= 0).sum()


def test_an_unknown_layout_is_refused_with_the_names_there_are():
    with pytest.raises(BadRequest, match="fast"):
        problem = drawn("a")
        order = order_of("a")
        monitor = Monitor(lambda order: liveness.score(problem, order, 0))
        place("tight", liveness.lifetimes(problem, order), problem.size, problem.workspace, 1, monitor)
