"""Best of many: a search within ever smaller arenas, then orders of placement drawn at random around the good ones.

Ends when time is up or nothing is wasted. O(r²) a draw for r storages: it moves a few that stick out of the
needed bytes to the front of the best order found so far and places all of them one by one again.
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

# Of the search; in the last each of its ranks works some seconds.
ROUNDS = 6


def place(lives: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor) -> np.ndarray:
    """Offsets that need the smallest arena found in the monitor's time; see `planner.layout`."""
    todo = storage_placement(lives, size, workspace, alignment)
    return todo.offsets(smallest_arena(todo.storages, randomized_offsets(todo.storages, monitor), monitor))


def randomized_offsets(storages: Storages, monitor: Monitor) -> Iterator[np.ndarray]:
    found: list[tuple[int, np.ndarray]] = []
    for offset in candidate_offsets(storages):
        found.append((storages.arena(offset), offset))
        yield offset
    if len(storages.size) > 4 * MAX_PAIRWISE:
        return
    best_bytes, best = min(found, key=lambda pair: pair[0])
    for best in canonical_search.shrinking_packings(storages, best_bytes, ROUNDS, monitor.should_stop):
        best_bytes = storages.arena(best)
        yield best
    need = int(storages.profile().max(initial=0))
    yield from neighbour_offsets(storages, best, need, partial(place_one_by_one, storages))


def neighbour_offsets(
    storages: Storages, best: np.ndarray, need: int, in_order: Callable[[np.ndarray], np.ndarray]
) -> Iterator[np.ndarray]:
    """Offsets from orders near that of the best so far, without end; `best` is above `need` bytes.

    An order that places by offset gives the same arena or a smaller one.
    """
    chance = random.Random(0)
    best_bytes, order = storages.arena(best), np.argsort(best, kind="stable").tolist()
    while True:
        ends = best + storages.size
        over = [i for i in order if ends[i] > need]
        first = chance.sample(over, min(len(over), chance.choice([1, 1, 2, 3])))
        tried = list(order)
        for i in first:
            tried.remove(i)
            tried.insert(chance.randrange(len(tried) // 2 + 1), i)
        offset = in_order(np.array(tried, np.int64))
        arena = storages.arena(offset)
        if arena <= best_bytes:
            best_bytes, best, order = arena, offset, tried
        yield offset
