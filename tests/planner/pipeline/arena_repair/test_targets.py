"""Targets of bytes near the budget: lower until addresses fit, then between what fitted and what missed."""

from __future__ import annotations

import pytest

from planner.pipeline.arena_repair.targets import FREE_TIGHTER, PACKABLE, TIGHTER, NearTargets


def test_the_first_targets_are_at_most_half_of_what_the_plan_holds_and_what_most_packings_allow() -> None:
    assert NearTargets.of(300, 1000).pair() == (150, int(TIGHTER * 150))
    assert NearTargets.of(90_000, 1000).pair()[0] == int(PACKABLE * 1000)


def test_targets_fall_while_addresses_miss_and_then_enclose_the_largest_that_fits() -> None:
    most, targets, tried = 300, NearTargets.of(8000, 1000), list[int]()
    for _ in range(12):
        pair = targets.pair()
        tried += pair
        targets.update([each for each in pair if each > most], [each for each in pair if each <= most])
    assert tried[0] > tried[1] > tried[2]
    assert 0.97 * most < targets.fitting <= most < targets.missed < 1.03 * most


def test_with_a_free_order_the_second_target_is_much_lower() -> None:
    given, free = NearTargets.of(16_000, 1000), NearTargets.of(16_000, 1000, FREE_TIGHTER)
    assert given.pair()[0] == free.pair()[0] and free.pair()[1] == FREE_TIGHTER * free.pair()[0]
    free.update(free.pair(), [])
    assert free.pair() == (225, 67)


def test_a_target_that_misses_below_one_that_fitted_counts() -> None:
    targets = NearTargets(missed=800, fitting=400, first=400)
    targets.update([350], [])
    assert targets.pair() == pytest.approx((350, 350), abs=1)
    targets.update([], [350])
    assert targets.pair() == pytest.approx((350, 350), abs=1)


def test_targets_that_no_walk_reaches_rise_toward_what_missed() -> None:
    targets = NearTargets.of(16_000, 1000)
    first = targets.pair()[0]
    for _ in range(20):
        targets.loosen()
    assert first < 3000 and 15_900 < targets.pair()[0] <= 16_000
    targets.update([], [500])
    before = targets.pair()
    targets.loosen()
    assert targets.pair() == before


def test_nothing_near_the_budget_leaves_targets_of_nothing() -> None:
    targets = NearTargets.of(0, 1000)
    targets.update(targets.pair(), [])
    assert targets.pair() == (0, 0)
