"""Best fit over a sweep through the steps: what ends is freed, what starts goes into the tightest hole.

O(r log r) time for r storages. `sweep` may find some of them placed already.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from planner.layout.storages import Storages


class FreeList:
    """Free byte ranges of an arena without end, by size and by place."""

    def __init__(self, used: list[tuple[int, int]]):
        self.begin_at_end: dict[int, int] = {}  # end -> begin
        self.end_at_begin: dict[int, int] = {}  # begin -> end
        self.by_size: list[tuple[int, int]] = []  # (size, begin), ascending
        self.top = 0  # everything from here on is free
        for begin, end in sorted(used):
            if begin > self.top:
                self._add(self.top, begin)
            self.top = max(self.top, end)

    def take(self, size: int, high: bool = False) -> int:
        """Offset of `size` bytes in the smallest hole that has them, at its low or its high end."""
        at = bisect_left(self.by_size, (size, -1))
        if at < len(self.by_size):
            begin = self.by_size[at][1]
            end = self.end_at_begin[begin]
            self._remove(begin, end)
            if end - begin > size:
                self._add(*((begin, end - size) if high else (begin + size, end)))
            return end - size if high else begin
        begin = self.begin_at_end.get(self.top, self.top)  # grow a hole that touches the top
        if begin < self.top:
            self._remove(begin, self.top)
        self.top = begin + size
        return begin

    def give(self, begin: int, end: int) -> None:
        """Free these bytes again."""
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
    """Fill `offset` where it is -1 for storages that start at step `first` or later.

    `order` ranks the storages by start; ties in it decide who is placed first. `high` says who goes
    to the high end of its hole.
    """
    start, stop, size = storages.start.tolist(), storages.stop.tolist(), storages.size.tolist()
    to_high = high.tolist() if high is not None else [False] * len(start)
    standing = np.flatnonzero((offset >= 0) & (storages.stop > first)).tolist()
    new = order[(offset[order] < 0) & (storages.start[order] >= first)].tolist()
    left, at = list(size), offset.tolist()
    holes = FreeList([(at[i], at[i] + size[i]) for i in standing])
    # Events that free bytes: (step, storage, bytes left after it).
    events = [(stop[i], i, 0) for i in standing + new]
    here = set(standing + new)
    shrinks = zip(
        storages.shrink_step.tolist(), storages.shrink_storage.tolist(), storages.shrink_size.tolist(), strict=True
    )
    events += [(step, i, to) for step, i, to in shrinks if i in here]
    events.sort(key=lambda event: event[0])
    done = 0
    for i in new:
        while done < len(events) and events[done][0] <= start[i]:
            _, gone, to = events[done]
            if to < left[gone]:
                holes.give(at[gone] + to, at[gone] + left[gone])
                left[gone] = to
            done += 1
        at[i] = holes.take(size[i], to_high[i])
    offset[:] = at
