"""Packings are repaired below a capacity by moving what is in the way."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from planner import layout
from planner.layout import (
    REPAIR_SHARE,
    best_fit,
    canonical_search,
    ejection,
    place_by_sweeps,
    place_toward,
    place_within,
)
from planner.problem import Csr
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes, Order, Score
from tests.planner.layout.test_canonical_search import drawn, is_apart, smallest, storages


def polls(count: int) -> Callable[[], bool]:
    """Stop after so many polls."""
    numbers = itertools.count()
    return lambda: next(numbers) >= count


def test_the_smallest_arena_of_few_storages_is_found_and_none_below_the_peak() -> None:
    rng = random.Random(5)
    for _ in range(40):
        given = drawn(rng, 6)
        least, peak = smallest(given), int(given.profile().max())
        offset = ejection.packing_within(given, least, polls(20))
        assert offset is not None and is_apart(given, offset) and int((offset + given.size).max()) <= least
        assert ejection.packing_within(given, peak - 1, polls(20)) is None


def test_a_stop_ends_the_repair() -> None:
    rng = random.Random(5)
    starts = [rng.randrange(100) for _ in range(200)]
    given = storages([(start, start + rng.randint(1, 20), rng.randint(1, 50)) for start in starts])
    peak = int(given.profile().max())
    assert given.arena(best_fit.sweep_from_peak(given, given.start)) > peak
    assert ejection.packing_within(given, peak, lambda: True) is None


def test_packings_approach_the_capacity_until_one_is_within_it() -> None:
    rng = random.Random(5)
    for _ in range(20):
        given = drawn(rng, 30)
        least = int(given.profile().max())
        arenas = []
        for offset in ejection.packings_toward(given, least * 21 // 20, polls(2_000)):
            assert is_apart(given, offset)
            arenas.append(given.arena(offset))
        assert arenas == sorted(arenas, reverse=True) and len(set(arenas)) == len(arenas)
        assert arenas[-1] <= least * 21 // 20


def test_places_are_multiples_of_what_divides_all_sizes_whatever_the_capacity() -> None:
    rng = random.Random(5)
    for _ in range(20):
        given = drawn(rng, 30)
        given = dataclasses.replace(given, size=64 * given.size, shrink_size=64 * given.shrink_size)
        capacity = int(given.profile().max()) * 21 // 20 + 13
        found = ejection.packing_within(given, capacity, polls(2_000))
        for offset in (*ejection.packings_toward(given, capacity, polls(2_000)), found):
            assert offset is not None and is_apart(given, offset) and not (offset % 64).any()


def test_the_repair_and_the_exhaustive_search_side_by_side_reach_the_capacity_that_either_does() -> None:
    count = 60
    order, nothing = np.arange(count), Csr.empty(count)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        start = np.sort(rng.integers(0, count - 20, count))
        stop, size = start + rng.integers(1, 20, count), 64 * rng.integers(1, 60, count)
        lives = Lifetimes(order, start, start, stop, np.full(count, -1), nothing, nothing)
        peak = max(int(size[(start <= step) & (stop > step)].sum()) for step in range(count))
        offsets, arena = place_toward(
            peak * 51 // 50, lives, size, np.zeros(count, np.int64), 64, Monitor(unused, seconds=60.0)
        )
        assert not (offsets[:count] % 64).any()
        assert arena <= peak * 51 // 50 and arena == int((offsets[:count] + size).max())


def test_the_exhaustive_search_beside_repairs_is_not_asked_for_less_than_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    #   60 bytes above 64: the end of the arena lies between multiples of the alignment
    rooms: list[int] = []
    monkeypatch.setattr(canonical_search, "packing_within", lambda storages, room, stop: rooms.append(room))
    nothing, start, stop = Csr.empty(2), np.zeros(2, np.int64), np.full(2, 2)
    lives = Lifetimes(np.arange(2), start, start, stop, np.full(2, -1), nothing, nothing)
    _, arena = place_toward(124, lives, np.array([64, 60]), np.zeros(2, np.int64), 64, Monitor(unused, seconds=60.0))
    assert (rooms, arena) == ([128], 124)


def unused(_: Order) -> Score:
    raise NotImplementedError


def test_storages_too_many_for_the_exhaustive_search_are_packed_below_what_sweeps_reach() -> None:
    rng = np.random.default_rng(0)
    count = canonical_search.MAX_STORAGES + 200
    start = np.sort(rng.integers(0, count, count))
    stop, size = start + rng.integers(1, 40, count), 64 * rng.integers(1, 60, count)
    order, nothing = np.arange(count), Csr.empty(count + 40)
    lives = Lifetimes(order, start, start, stop, np.full(count, -1), nothing, nothing)
    workspace = np.zeros(count + 40, np.int64)
    _, swept = place_by_sweeps(lives, size, workspace, 64, Monitor(unused, 60))
    capacity = swept - 640
    placed = place_within(capacity, lives, size, workspace, 64, Monitor(unused, 60))
    assert placed is not None and placed[1] <= capacity < swept
    begin, end = placed[0][:count], placed[0][:count] + size
    for i in range(count):
        beside = np.flatnonzero((start[i + 1 :] < stop[i]) & (stop[i + 1 :] > start[i])) + i + 1
        assert not ((begin[beside] < end[i]) & (end[beside] > begin[i])).any()


def test_the_storage_that_ends_an_arena_need_not_be_rounded_up() -> None:
    #   three storages live together; the last one fits with 10 bytes, not with 64
    size, start, nothing = np.array([64, 64, 10]), np.zeros(3, np.int64), Csr.empty(1)
    lives = Lifetimes(np.arange(3), start, start, start + 1, np.full(3, -1), nothing, nothing)

    def unused(_: Order) -> Score:
        raise NotImplementedError

    within = [place_within(each, lives, size, np.zeros(1, np.int64), 64, Monitor(unused, 60)) for each in (137, 138)]
    assert within[0] is None and within[1] is not None and within[1][1] == 138


@pytest.mark.parametrize("iterations", [None, 5])
@pytest.mark.parametrize("room", [0.0, 0.5])
def test_within_a_capacity_repairs_come_before_the_exhaustive_search(
    room: float, iterations: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, shares = random.Random(2), list[float]()
    count = 300
    start = np.array([rng.randrange(100) for _ in range(count)])
    stop = np.minimum(start + [rng.randint(1, 30) for _ in range(count)], 100)
    size = np.array([rng.randint(1, 50) for _ in range(count)])
    nothing = Csr.empty(100)
    lives = Lifetimes(np.arange(count), start, start, stop, np.full(count, -1), nothing, nothing)
    peak = int(storages(list(zip(start, stop, size, strict=True))).profile().max())
    polled = itertools.count()
    if not room:
        monkeypatch.setattr(layout, "REPAIR_MOVES", 0)
    monkeypatch.setattr(Monitor, "progress", lambda monitor: min(1.0, next(polled) / 20))

    def searched(given: object, capacity: int, stop: Callable[[], bool]) -> None:
        shares.append(next(polled) / 20)

    monkeypatch.setattr(canonical_search, "packing_within", searched)
    monitor = Monitor(lambda order: Score(0, 0, 0), seconds=60, iterations=iterations)
    found = place_within(int(peak * (1 + room)), lives, size, np.zeros(100, np.int64), 1, monitor)
    if room:
        assert found is not None and not shares
    elif iterations is None:
        assert found is None and shares == [pytest.approx(REPAIR_SHARE, abs=0.15)]
    else:
        assert found is None and len(shares) == 1 and monitor.calls == 0
