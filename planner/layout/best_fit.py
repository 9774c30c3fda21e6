"""Best fit over sweeps through the steps; of a few cheap ways to sweep the best is taken, and packed tighter.

O(k log k) time for k instances, and a search of bounded work where bytes are wasted (`canonical.py`). From the
peak outward: what is live there is stacked without a gap, longest at the bottom, and the rest falls into what is
left before and after.

    bytes │      d         Stacked at the peak are a, b, c, d by start. Going either way from there
          │    c─┴─╮       the top of the stack goes first when lifetimes nest, as they do in training.
          │  b─┴───┴─╮
          │ a┴───────┴─╮
          └─────┴────── steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from planner.layout import canonical_search
from planner.layout.storages import Storages, storage_placement
from planner.layout.sweep import sweep
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes

# Above this many storages, ways that look at all pairs are left out.
MAX_PAIRWISE = 2500
# Storages swept altogether after which no other way is tried; 100,000 take about half a second.
MAX_SWEPT = 60_000
# Of the search for a tighter packing, and looks at a section in it; a second at most.
ROUNDS, MAX_SECTION_VISITS = 1, 400_000_000


def place(lives: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor) -> np.ndarray:
    """Offsets by the first way that wastes nothing, else by the best of them; see `planner.layout`."""
    todo = storage_placement(lives, size, workspace, alignment)
    best = smallest_arena(todo.storages, candidate_offsets(todo.storages), monitor, MAX_SWEPT)
    cancelled = monitor.cancel_event.is_set
    for smaller in canonical_search.shrinking_packings(
        todo.storages, todo.storages.arena(best), ROUNDS, cancelled, MAX_SECTION_VISITS
    ):
        best = smaller
    return todo.offsets(best)


def smallest_arena(
    storages: Storages, tries: Iterator[np.ndarray], monitor: Monitor, limit: float = math.inf, enough: int = 0
) -> np.ndarray:
    """The offsets of the try that needs the smallest arena; stops at one without waste, or within `enough` bytes.

    There is at least one try; no other begins once `limit` storages were swept.
    """
    need = max(enough, int(storages.profile().max(initial=0)))
    best, swept = next(tries), len(storages.size)
    best_bytes = storages.arena(best)
    while best_bytes > need and swept < limit and not monitor.should_stop():
        swept += len(storages.size)
        tried = next(tries, None)
        if tried is None:
            break
        arena = storages.arena(tried)
        if arena < best_bytes:
            best, best_bytes = tried, arena
    return best


def candidate_offsets(storages: Storages) -> Iterator[np.ndarray]:
    """Offsets of the storages, one way to find them after the other, cheap ones first."""
    yield sweep_from_peak(storages, storages.start)
    yield sweep_forward(storages)
    yield sweep_backward(storages, sweep_forward)
    yield sweep_from_peak(storages, -storages.stop)
    length = storages.stop - storages.start
    for quantile in (0.5, 0.8, 0.95) if len(length) else ():
        yield sweep_forward(storages, length < np.quantile(length, quantile))
    if len(length) <= MAX_PAIRWISE:
        for key in (storages.size, storages.size * length.astype(float), length):
            yield place_one_by_one(storages, np.lexsort((storages.start, -storages.size, -key)))


def sweep_forward(storages: Storages, high: np.ndarray | None = None) -> np.ndarray:
    """A sweep from the first step on; at each step the longest are placed first."""
    offset = np.full(len(storages.start), -1, np.int64)
    sweep(storages, offset, np.lexsort((-storages.size, -storages.stop, storages.start)), 0, high)
    return offset


def sweep_backward(storages: Storages, way: Callable[[Storages], np.ndarray]) -> np.ndarray:
    """The same way from the last step back; shrinking tails are not used then."""
    return way(_mirrored(storages))


def sweep_from_peak(storages: Storages, key: np.ndarray) -> np.ndarray:
    """What is live at the peak stacked by `key`, then sweeps from there to both ends."""
    offset = np.full(len(storages.start), -1, np.int64)
    if not len(offset):
        return offset
    peak = int(np.argmax(storages.profile()))
    here = np.flatnonzero((storages.start <= peak) & (storages.stop > peak))
    here = here[np.lexsort((-storages.size[here], -storages.stop[here], key[here]))]
    ends = np.cumsum(storages.size[here])
    offset[here] = ends - storages.size[here]
    sweep(storages, offset, np.lexsort((-storages.size, -storages.stop, storages.start)), peak)
    back = _mirrored(storages)
    sweep(back, offset, np.lexsort((-back.size, -back.stop, back.start)), storages.steps - 1 - peak)
    return offset


def place_one_by_one(
    storages: Storages, order: np.ndarray, alignment: np.ndarray | None = None, pinned: np.ndarray | None = None
) -> np.ndarray:
    """Storages in this order, each at the lowest gap between those placed that are live with it. O(r²).

    `alignment` is int64[r]: 1 where none is given. `pinned` is int64[r]: offsets that are settled, or -1.
    """
    offset = np.full(len(storages.start), -1, np.int64) if pinned is None else pinned.copy()
    unit = np.ones(len(offset), np.int64) if alignment is None else alignment
    for i in order[offset[order] < 0].tolist():
        beside = (offset >= 0) & (storages.start < storages.stop[i]) & (storages.stop > storages.start[i])
        begin = offset[beside]
        by_begin = np.argsort(begin, kind="stable")
        begin = begin[by_begin]
        ends = np.maximum.accumulate(np.concatenate([[0], begin + storages.size[beside][by_begin]]))
        ends = -(-ends // unit[i]) * unit[i]
        fits = np.flatnonzero(begin - ends[:-1] >= storages.size[i])
        offset[i] = ends[fits[0]] if len(fits) else ends[-1]
    return offset


def _mirrored(storages: Storages) -> Storages:
    none = np.zeros(0, np.int64)
    return replace(
        storages,
        start=storages.steps - storages.stop,
        stop=storages.steps - storages.start,
        shrink_step=none,
        shrink_storage=none,
        shrink_size=none,
    )
