"""Assignment of storages to buffers: members have disjoint lifetimes, a buffer has its largest member's size.

step      0   1   2   3   4
a  10     ├───────┤               buffer 0: a, d   10 bytes
b   1             ├───┤           buffer 1: b, c    1 byte
c   1                     ├───┤
d  10                     ├───┤   11 bytes instead of 22

For frameworks with named blobs or a fixed list of buffers; with free addresses, a layout needs fewer bytes.
Minimizing the total is NP-hard (max-coloring of interval graphs: Pemmaraju, Raman, "Approximation
Algorithms for the Max-Coloring Problem", 2005, section 1), so several greedy orders are tried, and small
instances are searched by branch and bound.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

MAX_SEARCH_STEPS = 20_000  # partial assignments examined by the exact search
MAX_EXACT_STORAGES = 64  # largest instance of the exact search
MAX_BUFFER_PROBES = 1_000_000  # buffers examined by one first-fit pass


@dataclass(frozen=True, eq=False, slots=True)
class BufferAssignment:
    """Assignment of k storages to b buffers."""

    buffer: np.ndarray  # int64[k]
    size: np.ndarray  # int64[b]  bytes of the largest member
    bound_bytes: int  # peak of live bytes: a lower bound of every assignment

    @property
    def bytes(self) -> int:
        return int(self.size.sum())


def assign_buffers(
    start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray | None = None
) -> BufferAssignment:
    """A buffer for each storage live in steps [start, stop); storages share within their group only.

    Arguments are int64[k]; a negative `group` excludes a storage from sharing. An empty lifetime counts as one
    step. O(k log k) time plus a bounded search; deterministic.
    """
    count = len(start)
    stop = np.maximum(stop, start + 1)
    group = np.zeros(count, np.int64) if group is None else np.asarray(group, np.int64)
    alone = group < 0
    group = np.where(alone, group.max(initial=0) + 1 + np.arange(count), group)
    candidates = [_sweep(start, stop, size, group)]
    for order in (np.lexsort((start, -size)), np.lexsort((start, stop))):  # by size, buffers never grow
        fitted = _first_fit(start, stop, size, group, order)
        candidates += [] if fitted is None else [fitted]
    best = min(candidates, key=lambda buffer: _bytes(buffer, size))
    bound = _most_live(start, stop, size, group)
    if count <= MAX_EXACT_STORAGES and _bytes(best, size) > bound:
        best = _Search(start, stop, size, group).improved(best)
    best = _renumbered(best)
    return BufferAssignment(best, _sizes(best, size), bound)


def _sizes(buffer: np.ndarray, size: np.ndarray) -> np.ndarray:
    """int64[b]: bytes of the largest member of each buffer."""
    largest = np.zeros(int(buffer.max(initial=-1)) + 1, np.int64)
    np.maximum.at(largest, buffer, size)
    return largest


def _bytes(buffer: np.ndarray, size: np.ndarray) -> int:
    return int(_sizes(buffer, size).sum())


def _renumbered(buffer: np.ndarray) -> np.ndarray:
    """The assignment with buffers renumbered by first member."""
    _, first, inverse = np.unique(buffer, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse], np.int64)


def _most_live(start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray) -> int:
    """Sum over groups of the peak of live bytes."""
    if not len(start):
        return 0
    kind, time = np.tile(group, 2), np.concatenate([start, stop])
    change = np.concatenate([size, -size])
    order = np.lexsort((change, time, kind))  # at equal times, frees before allocations
    live = np.cumsum(change[order])  # 0 at the end of each group
    first = np.flatnonzero(np.diff(kind[order], prepend=kind[order[0]] - 1))
    return int(np.maximum.reduceat(live, first).sum())


def _sweep(start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Best fit by start, then largest first: each storage into the free buffer of the nearest size, or a new one."""
    result = np.full(len(start), -1, np.int64)
    ending: list[tuple[int, int, int, int]] = []  # heap of (stop, size of the buffer, buffer, group)
    free: dict[int, list[tuple[int, int]]] = {}  # group -> (size, buffer), ascending
    buffers = 0
    starts, stops, sizes, groups = start.tolist(), stop.tolist(), size.tolist(), group.tolist()
    for i in np.lexsort((-size, start)).tolist():
        while ending and ending[0][0] <= starts[i]:
            _, held, b, kind = heappop(ending)
            insort(free.setdefault(kind, []), (held, b))
        candidates = free.get(groups[i], [])
        at = bisect_left(candidates, (sizes[i], -1))
        if at and (at == len(candidates) or sizes[i] - candidates[at - 1][0] < candidates[at][0] - sizes[i]):
            at -= 1
        held, b = candidates.pop(at) if candidates else (0, buffers)
        buffers += b == buffers
        result[i] = b
        heappush(ending, (stops[i], max(held, sizes[i]), b, groups[i]))
    return result


@dataclass(slots=True)
class _Buffer:
    """One buffer and the disjoint lifetimes of its members."""

    group: int
    size: int = 0
    lifetimes: list[tuple[int, int]] = field(default_factory=list)  # (start, stop), ascending

    def takes(self, start: int, stop: int) -> bool:
        """True if no member is live in [start, stop)."""
        at = bisect_left(self.lifetimes, (start, start))
        return (at == 0 or self.lifetimes[at - 1][1] <= start) and (
            at == len(self.lifetimes) or self.lifetimes[at][0] >= stop
        )


def _first_fit(
    start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray, order: np.ndarray
) -> np.ndarray | None:
    """Best fit in the given order: each storage into the free buffer of the nearest size, or a new one.

    None if more than MAX_BUFFER_PROBES buffers would be examined.
    """
    probes = 0
    result = np.full(len(start), -1, np.int64)
    buffers: list[_Buffer] = []
    starts, stops, sizes, groups = start.tolist(), stop.tolist(), size.tolist(), group.tolist()
    for i in order.tolist():
        best, distance = -1, -1
        probes += len(buffers)
        if probes > MAX_BUFFER_PROBES:
            return None
        for b, buffer in enumerate(buffers):
            apart = abs(buffer.size - sizes[i])
            if buffer.group == groups[i] and (best < 0 or apart < distance) and buffer.takes(starts[i], stops[i]):
                best, distance = b, apart
        if best < 0:
            best = len(buffers)
            buffers.append(_Buffer(groups[i]))
        insort(buffers[best].lifetimes, (starts[i], stops[i]))
        buffers[best].size = max(buffers[best].size, sizes[i])
        result[i] = best
    return result


class _Search:
    """Branch and bound over assignments, largest storage first: the size of a buffer is its first member's."""

    def __init__(self, start: np.ndarray, stop: np.ndarray, size: np.ndarray, group: np.ndarray):
        self.sizes = size
        self.order = np.lexsort((start, -size)).tolist()
        self.lifetimes = list(zip(start.tolist(), stop.tolist(), strict=True))
        self.group = group.tolist()
        self.buffers: list[_Buffer] = []

    def improved(self, best: np.ndarray) -> np.ndarray:
        """The best assignment found within MAX_SEARCH_STEPS; `best` if none needs fewer bytes."""
        fewest, count = _bytes(best, self.sizes), len(self.order)
        chosen = [-1] * count  # buffer of the storage at each position of the order
        used = [0] * (count + 1)  # bytes of the buffers opened before the position
        depth = 0
        for _ in range(MAX_SEARCH_STEPS):
            if depth == count:
                fewest, best = used[depth], best.copy()
                best[self.order] = chosen
                depth -= 1
            i, first = self.order[depth], chosen[depth] + 1
            if first:
                self._remove(i, first - 1)
            b = self._next(i, first)
            used[depth + 1] = used[depth] + (int(self.sizes[i]) if b == len(self.buffers) else 0)
            if b > len(self.buffers) or used[depth + 1] >= fewest:
                chosen[depth] = -1
                if depth == 0:
                    break
                depth -= 1
                continue
            self._insert(i, b)
            chosen[depth] = b
            depth += 1
        return best

    def _insert(self, i: int, b: int) -> None:
        if b == len(self.buffers):
            self.buffers.append(_Buffer(self.group[i]))
        insort(self.buffers[b].lifetimes, self.lifetimes[i])

    def _remove(self, i: int, b: int) -> None:
        self.buffers[b].lifetimes.remove(self.lifetimes[i])
        if not self.buffers[b].lifetimes:
            self.buffers.pop()

    def _next(self, i: int, first: int) -> int:
        """The next buffer from `first` on that can hold storage `i`; `len(self.buffers)` stands for a new one."""
        for b in range(first, len(self.buffers)):
            if self.buffers[b].group == self.group[i] and self.buffers[b].takes(*self.lifetimes[i]):
                return b
        return max(first, len(self.buffers))
