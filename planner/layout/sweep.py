"""Best fit in a sweep through the steps: free what ends, place what starts into the tightest free range.

O(r log r) time for r storages, and O(r) for each where many free ranges are left. Some storages may be placed before
the sweep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.layout.storages import Storages
from planner.layout.sweep_kernels import COUNTERS, KERNELS, Events, FreeRanges, Swept

#: More storages are swept by compiled kernels where loading these compiles nothing.
MAX_INTERPRETED = 2000


def sweep(
    storages: Storages, offset: np.ndarray, order: np.ndarray, first: int = 0, high: np.ndarray | None = None
) -> None:
    """Fill `offset` where it is -1, for storages that start at step `first` or later.

    `order` ranks the storages by start; ties decide which is placed first. `high` (bool[r]) selects the storages
    placed at the high end of their free range.
    """
    count = len(offset)
    placed = np.flatnonzero((offset >= 0) & (storages.stop > first))
    new = order[(offset[order] < 0) & (storages.start[order] >= first)]
    swept = Swept(
        storages.start,
        storages.size.copy(),
        np.zeros(count, np.int64) if high is None else high.astype(np.int64),
        offset.copy(),
        placed[np.lexsort((storages.size[placed], offset[placed]))],
        new,
    )
    begin, end, range_size, low = np.zeros((4, count + 2), np.int64)
    free = FreeRanges(begin, end, range_size, low, np.zeros(COUNTERS, np.int64))
    events = _events(storages, np.concatenate([placed, new]))
    if KERNELS.is_compiled() or (count > MAX_INTERPRETED and KERNELS.is_on_disk()):
        KERNELS.compiled()["sweep_storages"](swept, events, free)
        offset[:] = swept.offset
    else:
        records: list[Any] = [type(each)(*(column.tolist() for column in each)) for each in (swept, events, free)]
        KERNELS.interpreted()["sweep_storages"](*records)
        offset[:] = records[0].offset


def _events(storages: Storages, swept: np.ndarray) -> Events:
    """What frees bytes of the storages of a sweep."""
    is_swept = np.zeros(len(storages.size), bool)
    is_swept[swept] = True
    shrinks = np.flatnonzero(is_swept[storages.shrink_storage])
    step = np.concatenate([storages.stop[swept], storages.shrink_step[shrinks]])
    by_step = np.argsort(step, kind="stable")
    storage = np.concatenate([swept, storages.shrink_storage[shrinks]])
    left = np.concatenate([np.zeros(len(swept), np.int64), storages.shrink_size[shrinks]])
    return Events(step[by_step], storage[by_step], left[by_step])
