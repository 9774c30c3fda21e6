"""Best fit over sweeps through the steps: several cheap sweeps, the best of which is then packed tighter.

O(k log k) time for k instances, plus a search of bounded work if bytes are wasted (`canonical_search.py`). A sweep from
the peak stacks the storages live there without gaps, longest at the bottom, and places the others in the gaps before
and after.

    bytes │      d         Stacked at the peak are a, b, c, d by start. In both directions from the peak
          │    c─┴─╮       the top of the stack is freed first if lifetimes nest, as they do in training.
          │  b─┴───┴─╮
          │ a┴───────┴─╮
          └─────┴────── steps
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.layout import canonical_search
from planner.layout.storages import Storages, storage_placement
from planner.layout.sweep import sweep
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes

# Maximum storages for methods that look at all pairs.
MAX_PAIRWISE = 2500
# Storages swept in total after which no further method is tried; 100,000 take about half a second.
MAX_SWEPT = 60_000
# Limits on the search for a tighter packing: rounds, and section visits (one second at most).
ROUNDS, MAX_SECTION_VISITS = 1, 400_000_000


def place(
    lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> np.ndarray:
    """Offsets by the first sweep without waste, else by the best sweep after tighter packing; see `planner.layout`."""
    placement = storage_placement(lifetimes, size, workspace, alignment)
    best = swept_offsets(placement.storages, monitor)
    stop = monitor.should_stop if monitor.iterations is None else monitor.cancel_event.is_set
    for smaller in canonical_search.shrinking_packings(
        placement.storages, placement.storages.arena(best), ROUNDS, stop, MAX_SECTION_VISITS
    ):
        best = smaller
    return placement.offsets(best)


def swept_offsets(storages: Storages, monitor: Monitor) -> np.ndarray:
    """Offsets of the storages by the first sweep without waste, else by the best of several."""
    return smallest_arena(storages, candidate_offsets(storages), monitor, MAX_SWEPT)


def smallest_arena(
    storages: Storages, tries: Iterator[np.ndarray], monitor: Monitor, limit: float = math.inf, enough: int = 0
) -> np.ndarray:
    """The offsets with the smallest arena; stops at a try without waste, or within `enough` bytes.

    Needs at least one try; no further try starts once `limit` storages have been swept.
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
    """Offsets of the storages by several methods, cheap ones first."""
    yield sweep_from_peak(storages, storages.start)
    yield sweep_forward(storages)
    yield sweep_forward(_mirrored(storages))  # backward; shrinking tails are ignored
    yield sweep_from_peak(storages, -storages.stop)
    length = storages.stop - storages.start
    for quantile in (0.5, 0.8, 0.95) if len(length) else ():
        yield sweep_forward(storages, length < np.quantile(length, quantile))
    if len(length) <= MAX_PAIRWISE:
        for key in (storages.size, storages.size * length.astype(float), length):
            yield place_one_by_one(storages, np.lexsort((storages.start, -storages.size, -key)))


def sweep_forward(storages: Storages, high: np.ndarray | None = None) -> np.ndarray:
    """Offsets by a sweep from the first step; at each step the longest storages are placed first."""
    offset = np.full(len(storages.start), -1, np.int64)
    sweep(storages, offset, np.lexsort((-storages.size, -storages.stop, storages.start)), 0, high)
    return offset


def sweep_from_peak(storages: Storages, key: np.ndarray) -> np.ndarray:
    """Offsets with the storages live at the peak stacked by `key`, then sweeps from there to both ends."""
    offset = np.full(len(storages.start), -1, np.int64)
    if not len(offset):
        return offset
    peak = int(np.argmax(storages.profile()))
    here = np.flatnonzero((storages.start <= peak) & (storages.stop > peak))
    here = here[np.lexsort((-storages.size[here], -storages.stop[here], key[here]))]
    ends = np.cumsum(storages.size[here])
    offset[here] = ends - storages.size[here]
    sweep(storages, offset, np.lexsort((-storages.size, -storages.stop, storages.start)), peak)
    mirrored = _mirrored(storages)
    sweep(mirrored, offset, np.lexsort((-mirrored.size, -mirrored.stop, mirrored.start)), storages.steps - 1 - peak)
    return offset


def place_one_by_one(
    storages: Storages, order: np.ndarray, alignment: np.ndarray | None = None, pinned: np.ndarray | None = None
) -> np.ndarray:
    """Offsets of storages placed in this order, each at the lowest gap between those live with it. O(r²).

    `alignment` is int64[r], 1 by default. `pinned` is int64[r]: fixed offsets, or -1.
    """
    offset = np.full(len(storages.start), -1, np.int64) if pinned is None else pinned.copy()
    unit = np.ones(len(offset), np.int64) if alignment is None else alignment
    for i in order[offset[order] < 0].tolist():
        overlaps = (offset >= 0) & (storages.start < storages.stop[i]) & (storages.stop > storages.start[i])
        begin = offset[overlaps]
        by_begin = np.argsort(begin, kind="stable")
        begin = begin[by_begin]
        ends = np.maximum.accumulate(np.concatenate([[0], begin + storages.size[overlaps][by_begin]]))
        ends = -(-ends // unit[i]) * unit[i]
        fits = np.flatnonzero(begin - ends[:-1] >= storages.size[i])
        offset[i] = ends[fits[0]] if len(fits) else ends[-1]
    return offset


def _mirrored(storages: Storages) -> Storages:
    """The storages in reversed time, without shrinking tails."""
    none = np.zeros(0, np.int64)
    return replace(
        storages,
        start=storages.steps - storages.stop,
        stop=storages.steps - storages.start,
        shrink_step=none,
        shrink_storage=none,
        shrink_size=none,
    )
