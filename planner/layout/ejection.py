"""Repair of a packing by ejection: storages above the capacity go below it, and those in their way move in turn.

    capacity │- - -┌─c─┐- -        c takes the place where the storages in the way weigh least, the more the more often
             │ ┌─b─┴─┬─┘           they were moved: that of b. Next b looks for a place, and so on until all lie below.
             │ └─────┘
             └───────────── steps

A move takes O(r) for r storages, so that packings of 100,000 storages can be repaired, which `canonical_search.py`
cannot hold. It proves nothing, and finds nothing where little room is left throughout. A repair that takes long is
given up for one with other weights. A storage that shrinks counts in full to its end.

Source: weights that grow with each failure are those of Morris, "The breakout method for escaping from local minima",
AAAI 1993.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from planner.layout import best_fit
from planner.layout.ejection_kernels import COUNTERS, KERNELS, PLACED, RANDOM, WAITING, Boxes, Ejection
from planner.layout.storages import Storages

# Moves between two polls of `stop`, and moves per storage of a repair in the first round; the next have twice as many.
MOVES, FIRST_MOVES = 256, 40
# Repairs of a round: the powers of the duration in the weight and in the rank of a storage, both with its size, and the
# percent of its weight that each ejection adds.
REPAIRS = ((1.0, 0.0, 30), (0.5, 0.5, 30), (0.5, 0.0, 100))
# Mean weight of a storage.
MEAN_WEIGHT = 1000
# An arena is near another within 1 / NEAR of it.
NEAR = 500


def packing_within(storages: Storages, capacity: int, stop: Callable[[], bool]) -> np.ndarray | None:
    """Offsets with an arena of at most `capacity` bytes; None if none is found before `stop`, or none exists.

    Starts from a sweep from the peak, as those that nest lie without gaps there.
    """
    if int(storages.profile().max(initial=0)) > capacity:
        return None
    begin = best_fit.sweep_from_peak(storages, storages.start)
    for number in itertools.count():
        found = _repaired(storages, begin, capacity, number, FIRST_MOVES << number // len(REPAIRS), stop)
        if found is not None or stop():
            return found
    return None


def packings_toward(storages: Storages, capacity: int, stop: Callable[[], bool]) -> Iterator[np.ndarray]:
    """Offsets with ever smaller arenas, until one is at most `capacity` bytes, or until `stop`.

    Each target is half way from the arena before to the capacity, or to a target that was missed. Once the two are
    near, all targets follow again with twice the moves.
    """
    begin = best = best_fit.sweep_from_peak(storages, storages.start)
    yield begin
    least = missed = max(capacity, int(storages.profile().max(initial=0)))
    moves = FIRST_MOVES // 4
    while (arena := storages.arena(best)) > least and not stop():
        if arena - missed <= least // NEAR:
            missed, moves = least, 2 * moves
        target = least if arena - least <= least // NEAR else (missed + arena) // 2
        for start, number in itertools.product((begin, best), range(len(REPAIRS))):
            found = _repaired(storages, start, target, number, moves, stop)
            if found is not None or stop():
                break
        if found is None:
            missed = target
        else:
            yield (best := found)


def repaired(
    storages: Storages, begin: np.ndarray, capacity: int, moves: int, stop: Callable[[], bool]
) -> np.ndarray | None:
    """Offsets with an arena of at most `capacity` bytes by repair of `begin`; None if none is found.

    Each repair takes at most `moves` for each storage, until `stop`. Of `begin`, those that end within the capacity
    must not overlap.
    """
    if int(storages.profile().max(initial=0)) > capacity:
        return None
    tries = (_repaired(storages, begin, capacity, number, moves, stop) for number in range(len(REPAIRS)))
    return next((found for found in tries if found is not None), None)


def _repaired(
    storages: Storages, begin: np.ndarray, capacity: int, number: int, moves: int, stop: Callable[[], bool]
) -> np.ndarray | None:
    """Offsets below the capacity by one repair of the offsets `begin`; None after so many moves per storage."""
    place_waiting, left = KERNELS.compiled()["place_waiting"], moves * len(begin)
    capacity -= capacity % max(1, int(np.gcd.reduce(storages.size)))  # places end there, and begin at multiples too
    boxes, state = _begun(storages, begin, capacity, *REPAIRS[number % len(REPAIRS)])
    state.counters[RANDOM] = number + 1
    while left > 0 and state.counters[WAITING]:
        if stop():
            return None
        place_waiting(boxes, state, capacity, min(left, MOVES))
        left -= MOVES
    return None if state.counters[WAITING] else np.asarray(state.low)


def _begun(
    storages: Storages, begin: np.ndarray, capacity: int, power: float, rank_power: float, growth: int
) -> tuple[Boxes, Ejection]:
    """A repair of the offsets `begin`, before its first move: storages above the capacity wait."""
    size, end = storages.size, begin + storages.size
    duration = np.maximum(1, storages.stop - storages.start).astype(float)
    weight = size * duration**power
    weight = 1 + (weight * (MEAN_WEIGHT / max(1.0, weight.mean() if len(weight) else 0.0))).astype(np.int64)
    placed, waiting = np.flatnonzero(end <= capacity), np.flatnonzero(end > capacity)
    by_low, by_high, waits, near, near_ends = (np.zeros(len(begin) + 1, np.int64) for _ in range(5))
    by_low[: len(placed)] = placed[np.argsort(begin[placed], kind="stable")]
    by_high[: len(placed)] = placed[np.argsort(end[placed], kind="stable")]
    waits[: len(waiting)] = waiting
    counters = np.zeros(COUNTERS, np.int64)
    counters[[PLACED, WAITING]] = len(placed), len(waiting)
    rank = np.argsort(np.argsort(size * duration**rank_power, kind="stable"), kind="stable")
    boxes = Boxes(storages.start, storages.stop, size, rank, 1 + weight * growth // 100)
    return boxes, Ejection(begin.copy(), end, weight, by_low, by_high, waits, near, near_ends, counters)
