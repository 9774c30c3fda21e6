"""Addresses of a plan are kept where a shorter order holds the bytes no longer."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import numpy as np

from planner.errors import IllegalPlan
from planner.layout import place_again, place_by_sweeps
from planner.layout.known_places import KnownPlaces
from planner.layout.storages import storage_placement
from planner.problem import DEVICE, Csr, Problem
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Lifetimes, Plan, Score
from planner.problem.recompute import is_first_run
from planner.verify.checker import check
from tests.planner.drawn import problem_of
from tests.planner.random_problems import random_order, random_problem

ALIGNMENT = 4


def placed(problem: Problem, order: np.ndarray) -> Plan:
    plan = evaluate(problem, Goal(), order, "drawn")
    unlimited = Monitor(lambda order: Score(0, 0, 0), iterations=99)
    offsets, arena = place_by_sweeps(plan.lifetimes, on_device(problem), problem.workspace[order], ALIGNMENT, unlimited)
    return with_addresses(plan, offsets, arena)


def with_addresses(plan: Plan, offsets: np.ndarray, arena: int) -> Plan:
    return replace(plan, offsets=offsets, arena_bytes=arena)


def never() -> bool:
    return False


def on_device(problem: Problem) -> np.ndarray:
    return np.where(problem.space == DEVICE, problem.size, 0)


@cache
def pairs_of_orders(count: int) -> list[tuple[Problem, Plan, Plan, np.ndarray]]:
    """(problem, placed plan, plan with one recomputation less, the step that each of its steps was)."""
    rng, found = random.Random(3), []
    while len(found) < count:
        problem = random_problem(rng, 9)
        order = np.array(random_order(rng, problem), np.int64)
        repeats = np.flatnonzero(~is_first_run(problem, order)) if len(order) else []
        if not len(repeats):
            continue
        origin = np.delete(np.arange(len(order)), rng.choice(list(repeats)))
        try:
            longer, shorter = placed(problem, order), evaluate(problem, Goal(), order[origin], "shorter")
            for plan in (longer, shorter):
                check(problem, Goal(), plan, ALIGNMENT)
        except IllegalPlan:
            continue
        if not (problem.space != DEVICE).any():
            found.append((problem, longer, shorter, origin))
    return found


def test_what_is_held_no_longer_keeps_its_address_and_nothing_kept_overlaps() -> None:
    kept = moved = 0
    for problem, longer, shorter, origin in pairs_of_orders(300):
        size, workspace = on_device(problem), problem.workspace[shorter.order]
        placement = storage_placement(shorter.lifetimes, size, workspace, ALIGNMENT)
        assert longer.offsets is not None
        known = KnownPlaces(longer.lifetimes, problem.workspace[longer.order], longer.offsets)
        begin = known.begin(placement, shorter.lifetimes, origin, size, ALIGNMENT)
        storages, at = placement.storages, np.flatnonzero(begin >= 0)
        for i, j in itertools.combinations(at.tolist(), 2):
            if storages.start[i] < storages.stop[j] and storages.start[j] < storages.stop[i]:
                assert begin[i] + storages.size[i] <= begin[j] or begin[j] + storages.size[j] <= begin[i]
        kept, moved = kept + len(at), moved + len(begin) - len(at)
    assert kept > 3 * moved > 0


def test_a_storage_that_was_live_throughout_and_is_no_more_waits() -> None:
    problem = problem_of([[0], []], [[], []], 1, size=[8])
    longer, shorter = placed(problem, np.array([1, 0])), evaluate(problem, Goal(), np.array([0, 1]), "shorter")
    assert longer.offsets is not None
    placement = storage_placement(shorter.lifetimes, problem.size, problem.workspace, ALIGNMENT)
    known = KnownPlaces(longer.lifetimes, problem.workspace, longer.offsets)
    begin = known.begin(placement, shorter.lifetimes, np.arange(2), problem.size, ALIGNMENT)
    assert storage_placement(longer.lifetimes, problem.size, problem.workspace, ALIGNMENT).base == 8
    assert begin.tolist() == [-1] and placement.base == 0


def test_a_known_place_in_the_last_unit_of_the_capacity_is_kept() -> None:
    size, start, stop, none = np.array([64, 64, 10]), np.array([0, 0, 1]), np.array([3, 1, 3]), Csr.empty(3)
    lives, workspace = Lifetimes(np.arange(3), start, start, stop, np.full(3, -1), none, none), np.zeros(3, np.int64)
    offsets = np.array([0, 64, 128, -1, -1, -1])
    known = KnownPlaces(lives, workspace, offsets)
    found = place_again(138, known, np.arange(3), lives, size, workspace, 64, 5, never)
    assert found is not None and found[0].tolist() == offsets.tolist() and found[1] == 138


def test_repaired_addresses_fit_the_capacity_and_pass_the_checker() -> None:
    fitting = 0
    for problem, longer, shorter, origin in pairs_of_orders(300):
        assert longer.offsets is not None and longer.arena_bytes is not None
        known = KnownPlaces(longer.lifetimes, problem.workspace[longer.order], longer.offsets)
        size, workspace = on_device(problem), problem.workspace[shorter.order]
        found = place_again(longer.arena_bytes, known, origin, shorter.lifetimes, size, workspace, ALIGNMENT, 20, never)
        if found is not None:
            fitting += 1
            assert found[1] <= longer.arena_bytes
            check(problem, Goal(), with_addresses(shorter, *found), ALIGNMENT)
        peak = storage_placement(shorter.lifetimes, size, workspace, ALIGNMENT)
        too_small = peak.base + int(peak.storages.profile().max(initial=0)) - ALIGNMENT
        if too_small > 0:
            assert (
                place_again(too_small, known, origin, shorter.lifetimes, size, workspace, ALIGNMENT, 20, never) is None
            )
    assert fitting > 150
