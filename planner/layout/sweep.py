"""Best fit in a sweep through the steps: free what ends, place what starts into the tightest free range.

O(r log r) time for r storages. Some storages may be placed before the sweep.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from planner.layout.storages import Storages


class FreeList:
    """Free byte ranges of an unbounded arena, by size and by address."""

    def __init__(self, used: list[tuple[int, int]]):
        self.begin_at_end: dict[int, int] = {}  # end -> begin
        self.end_at_begin: dict[int, int] = {}  # begin -> end
        self.by_size: list[tuple[int, int]] = []  # (size, begin), ascending
        self.top = 0  # all bytes from active on are free
        for begin, end in sorted(used):
            if begin > self.top:
                self._add(self.top, begin)
            self.top = max(self.top, end)

    def take(self, size: int, high: bool = False) -> int:
        """Allocate: offset of `size` bytes in the smallest sufficient free range, at its low or its high end."""
        at = bisect_left(self.by_size, (size, -1))
        if at < len(self.by_size):
            begin = self.by_size[at][1]
            end = self.end_at_begin[begin]
            self._remove(begin, end)
            if end - begin > size:
                self._add(*((begin, end - size) if high else (begin + size, end)))
            return end - size if high else begin
        begin = self.begin_at_end.get(self.top, self.top)  # extend a free range that ends at the top
        if begin < self.top:
            self._remove(begin, self.top)
        self.top = begin + size
        return begin

    def give(self, begin: int, end: int) -> None:
        """Free these bytes and merge them with adjacent free ranges."""
        if begin in self.begin_at_end:
            low = self.begin_at_end[begin]
            self._remove(low, begin)
            begin = low
        if end in self.end_at_begin:
            high = self.end_at_begin[end]
            self._remove(end, high)
            end = high
        self._add(begin, end)

    def _add(self, begin: int, end: int) -> None:
        self.begin_at_end[end], self.end_at_begin[begin] = begin, end
        insort(self.by_size, (end - begin, begin))

    def _remove(self, begin: int, end: int) -> None:
        del self.begin_at_end[end], self.end_at_begin[begin]
        del self.by_size[bisect_left(self.by_size, (end - begin, begin))]


def sweep(
    storages: Storages, offset: np.ndarray, order: np.ndarray, first: int = 0, high: np.ndarray | None = None
) -> None:
    """Fill `offset` where it is -1, for storages that start at step `first` or later.

    `order` ranks the storages by start; ties decide which is placed first. `high` (bool[r]) selects the storages
    placed at the high end of their free range.
    """
    start, stop, size = storages.start.tolist(), storages.stop.tolist(), storages.size.tolist()
    to_high = high.tolist() if high is not None else [False] * len(start)
    placed = np.flatnonzero((offset >= 0) & (storages.stop > first)).tolist()
    new = order[(offset[order] < 0) & (storages.start[order] >= first)].tolist()
    size_now, at = list(size), offset.tolist()
    free = FreeList([(at[i], at[i] + size[i]) for i in placed])
    # Events that free bytes: (step, storage, its remaining bytes).
    events = [(stop[i], i, 0) for i in placed + new]
    active = set(placed + new)
    shrinks = zip(
        storages.shrink_step.tolist(), storages.shrink_storage.tolist(), storages.shrink_size.tolist(), strict=True
    )
    events += [(step, i, to) for step, i, to in shrinks if i in active]
    events.sort(key=lambda event: event[0])
    done = 0
    for i in new:
        while done < len(events) and events[done][0] <= start[i]:
            _, ended, to = events[done]
            if to < size_now[ended]:
                free.give(at[ended] + to, at[ended] + size_now[ended])
                size_now[ended] = to
            done += 1
        at[i] = free.take(size[i], to_high[i])
    offset[:] = at
