"""Storages that share a buffer: lives that do not overlap, the largest member's size.

step      0   1   2   3   4
a  10     ├───────┤               buffer 0: a, d   10 bytes
b   1             ├───┤           buffer 1: b, c    1 byte
c   1                     ├───┤
d  10                     ├───┤   11 bytes for what would be 22

This is how a framework with named blobs or a fixed list of buffers saves memory; where addresses can be
given, a layout does better. Least bytes in general is NP-hard (weighted interval colouring:
Pemmaraju, Raman, "Approximation Algorithms for the Max-Coloring Problem", 2005, section 1), so a few
orders are tried, and small cases are searched to the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

MAX_SEARCH_STEPS = 20_000  # partial assignments an exact search may look at
MAX_EXACT_STORAGES = 64  # storages an exact search is tried on
MAX_BUFFER_PROBES = 1_000_000  # buffers that fitting storages one by one may look at


@dataclass(frozen=True, eq=False, slots=True)
class BufferAssignment:
    """Which of k storages lie in which of b buffers."""

    buffer: np.ndarray  # int64[k]
    size: np.ndarray  # int64[b]  bytes of the largest member
    bound_bytes: int  # most bytes live at once, which no sharing can be below

    @property
    def bytes(self) -> int:
        return int(self.size.sum())


def assign_buffers(
    start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray | None = None
) -> BufferAssignment:
    """A buffer for each storage that lives in steps [start, stop); those of a group share with each other only.

    int64[k] each; `group` below 0 says that a storage shares with none. Storages that would live in no
    step live in their first. O(k log k) time, and a bounded search besides; the same storages give the same buffers.
    """
    count = len(start)
    stop = np.maximum(stop, start + 1)
    group = np.zeros(count, np.int64) if group is None else np.asarray(group, np.int64)
    alone = group < 0
    group = np.where(alone, group.max(initial=0) + 1 + np.arange(count), group)
    found = [_sweep(start, stop, size, group)]
    for order in (np.lexsort((start, -size)), np.lexsort((start, stop))):  # by size a buffer never grows
        fitted = _first_fit(start, stop, size, group, order)
        found += [] if fitted is None else [fitted]
    best = min(found, key=lambda buffer: _bytes(buffer, size))
    bound = _most_live(start, stop, size, group)
    if count <= MAX_EXACT_STORAGES and _bytes(best, size) > bound:
        best = _Search(start, stop, size, group).improved(best)
    best = _renumbered(best)
    return BufferAssignment(best, _sizes(best, size), bound)


def _sizes(buffer: np.ndarray, size: np.ndarray) -> np.ndarray:
    """int64[b]: bytes of the largest member of each buffer."""
    most = np.zeros(int(buffer.max(initial=-1)) + 1, np.int64)
    np.maximum.at(most, buffer, size)
    return most


def _bytes(buffer: np.ndarray, size: np.ndarray) -> int:
    return int(_sizes(buffer, size).sum())


def _renumbered(buffer: np.ndarray) -> np.ndarray:
    """Buffers numbered by their first member."""
    _, first, inverse = np.unique(buffer, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse], np.int64)


def _most_live(start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray) -> int:
    """Most bytes live at once, of each group, added up."""
    if not len(start):
        return 0
    kind, time = np.tile(group, 2), np.concatenate([start, stop])
    change = np.concatenate([size, -size])
    order = np.lexsort((change, time, kind))  # what ends is gone before what starts
    live = np.cumsum(change[order])  # back at 0 where a group ends
    first = np.flatnonzero(np.diff(kind[order], prepend=kind[order[0]] - 1))
    return int(np.maximum.reduceat(live, first).sum())


def _sweep(start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Storages by start, the largest first, each into the free buffer nearest to its size, or into a new one."""
    result = np.full(len(start), -1, np.int64)
    ending: list[tuple[int, int, int, int]] = []  # heap of (stop, size of the buffer, buffer, group)
    free: dict[int, list[tuple[int, int]]] = {}  # group -> (size, buffer), ascending
    buffers = 0
    starts, stops, sizes, groups = start.tolist(), stop.tolist(), size.tolist(), group.tolist()
    for i in np.lexsort((-size, start)).tolist():
        while ending and ending[0][0] <= starts[i]:
            _, held, b, kind = heappop(ending)
            insort(free.setdefault(kind, []), (held, b))
        there = free.get(groups[i], [])
        at = bisect_left(there, (sizes[i], -1))
        if at and (at == len(there) or sizes[i] - there[at - 1][0] < there[at][0] - sizes[i]):
            at -= 1
        held, b = there.pop(at) if there else (0, buffers)
        buffers += b == buffers
        result[i] = b
        heappush(ending, (stops[i], max(held, sizes[i]), b, groups[i]))
    return result


@dataclass(slots=True)
class _Buffer:
    """The lives in one buffer; they are disjoint."""

    group: int
    size: int = 0
    lives: list[tuple[int, int]] = field(default_factory=list)  # (start, stop), ascending

    def takes(self, start: int, stop: int) -> bool:
        """True when no member lives in [start, stop)."""
        at = bisect_left(self.lives, (start, start))
        return (at == 0 or self.lives[at - 1][1] <= start) and (at == len(self.lives) or self.lives[at][0] >= stop)


def _first_fit(
    start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray, order: np.ndarray
) -> np.ndarray | None:
    """Storages in this order, each into the free buffer nearest to its size, or into a new one.

    None when more than `LOOKED` buffers would have to be looked at.
    """
    looked = 0
    result = np.full(len(start), -1, np.int64)
    buffers: list[_Buffer] = []
    starts, stops, sizes, groups = start.tolist(), stop.tolist(), size.tolist(), group.tolist()
    for i in order.tolist():
        best, distance = -1, -1
        looked += len(buffers)
        if looked > MAX_BUFFER_PROBES:
            return None
        for b, buffer in enumerate(buffers):
            apart = abs(buffer.size - sizes[i])
            if buffer.group == groups[i] and (best < 0 or apart < distance) and buffer.takes(starts[i], stops[i]):
                best, distance = b, apart
        if best < 0:
            best = len(buffers)
            buffers.append(_Buffer(groups[i]))
        insort(buffers[best].lives, (starts[i], stops[i]))
        buffers[best].size = max(buffers[best].size, sizes[i])
        result[i] = best
    return result


class _Search:
    """Depth-first over assignments, largest storages first, so that the size of a buffer is its first member's."""

    def __init__(self, start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray):
        self.sizes = size
        self.order = np.lexsort((start, -size)).tolist()
        self.lives = list(zip(start.tolist(), stop.tolist(), strict=True))
        self.group = group.tolist()
        self.buffers: list[_Buffer] = []

    def improved(self, best: np.ndarray) -> np.ndarray:
        """An assignment of fewer bytes than `best`, if the search meets one; else `best`."""
        least, count = _bytes(best, self.sizes), len(self.order)
        chosen = [-1] * count  # buffer of the storage at each place of the order
        used = [0] * (count + 1)  # bytes of the buffers opened before the place
        place = 0
        for _ in range(MAX_SEARCH_STEPS):
            if place == count:
                least, best = used[place], best.copy()
                best[self.order] = chosen
                place -= 1
            i, first = self.order[place], chosen[place] + 1
            if first:
                self._take_out(i, first - 1)
            b = self._next(i, first)
            used[place + 1] = used[place] + (int(self.sizes[i]) if b == len(self.buffers) else 0)
            if b > len(self.buffers) or used[place + 1] >= least:
                chosen[place] = -1
                if place == 0:
                    break
                place -= 1
                continue
            self._put_in(i, b)
            chosen[place] = b
            place += 1
        return best

    def _put_in(self, i: int, b: int) -> None:
        if b == len(self.buffers):
            self.buffers.append(_Buffer(self.group[i]))
        insort(self.buffers[b].lives, self.lives[i])

    def _take_out(self, i: int, b: int) -> None:
        self.buffers[b].lives.remove(self.lives[i])
        if not self.buffers[b].lives:
            self.buffers.pop()

    def _next(self, i: int, first: int) -> int:
        """The next buffer from `first` on that is free for storage `i`; as many as there are is a new one."""
        for b in range(first, len(self.buffers)):
            if self.buffers[b].group == self.group[i] and self.buffers[b].takes(*self.lives[i]):
                return b
        return max(first, len(self.buffers))
