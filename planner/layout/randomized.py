"""Randomized layout: packings into ever smaller arenas, then random changes of the placement order of the best.

Ends at the time limit or when nothing is wasted. A change takes O(r²) for r storages: it moves a few storages that
exceed the needed bytes to the front of the best order so far and places all of them one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from planner.layout import canonical_search
from planner.layout.best_fit import MAX_PAIRWISE, candidate_offsets, place_one_by_one, smallest_arena
from planner.layout.storages import Storages, storage_placement
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes

# Rounds of the packing search; in the last one each rank takes some seconds.
ROUNDS = 6


def place(
    lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> np.ndarray:
    """Offsets with the smallest arena candidates in the monitor's time; see `planner.layout`."""
    placement = storage_placement(lifetimes, size, workspace, alignment)
    return placement.offsets(
        smallest_arena(placement.storages, randomized_offsets(placement.storages, monitor), monitor)
    )


def randomized_offsets(storages: Storages, monitor: Monitor) -> Iterator[np.ndarray]:
    """Offsets of the storages by all methods: sweeps, packings, then an endless random neighbourhood search."""
    candidates: list[tuple[int, np.ndarray]] = []
    for offset in candidate_offsets(storages):
        candidates.append((storages.arena(offset), offset))
        yield offset
    if len(storages.size) > 4 * MAX_PAIRWISE:
        return
    best_bytes, best = min(candidates, key=lambda pair: pair[0])
    for best in canonical_search.shrinking_packings(storages, best_bytes, ROUNDS, monitor.should_stop):
        best_bytes = storages.arena(best)
        yield best
    need = int(storages.profile().max(initial=0))
    yield from neighbour_offsets(storages, best, need, partial(place_one_by_one, storages))


def neighbour_offsets(
    storages: Storages, best: np.ndarray, need: int, in_order: Callable[[np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:
    """Endless offsets from placement orders near that of the best so far; `best` needs more than `need` bytes.

    Placing one by one in the order of the offsets gives the same arena or a smaller one.
    """
    rng = random.Random(0)
    best_bytes, order = storages.arena(best), np.argsort(best, kind="stable").tolist()
    while True:
        ends = best + storages.size
        over = [i for i in order if ends[i] > need]
        first = rng.sample(over, min(len(over), rng.choice([1, 1, 2, 3])))
        tried = list(order)
        for i in first:
            tried.remove(i)
            tried.insert(rng.randrange(len(tried) // 2 + 1), i)
        offset = in_order(np.array(tried, np.int64))
        arena = storages.arena(offset)
        if arena <= best_bytes:
            best_bytes, best, order = arena, offset, tried
        yield offset
