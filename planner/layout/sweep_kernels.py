"""Kernels of the sweep through the steps; see `sweep.py` and `planner/problem/jit.py`."""

from __future__ import annotations

from typing import NamedTuple

from planner.problem.jit import Kernels, Row

# Entries of `FreeRanges.counters`: the number of free ranges, and the address from which on all bytes are free.
COUNT, TOP = range(2)
COUNTERS = 2


class FreeRanges(NamedTuple):
    """Free byte ranges of an unbounded arena, by address and by size; at most one more than storages."""

    begin: Row  # ascending
    end: Row
    size: Row  # ascending; of ranges of one size, the lowest is first
    low: Row  # where the range of this size begins
    counters: Row  # COUNTERS


class Events(NamedTuple):
    """What frees bytes, by step."""

    step: Row
    storage: Row
    bytes: Row  # that the storage keeps


class Swept(NamedTuple):
    """r storages: `new`, by start, are placed; the others keep their offset or have none."""

    start: Row  # r
    size: Row  # r: bytes that are left; changed by the sweep
    high: Row  # r: 1 for those placed at the high end of their range
    offset: Row  # r
    placed: Row  # by offset
    new: Row


def by_address(free: FreeRanges, begin: int) -> int:
    """How many ranges begin below the address."""
    low, high = 0, free.counters[COUNT]
    while low < high:
        middle = (low + high) // 2
        if free.begin[middle] < begin:
            low = middle + 1
        else:
            high = middle
    return low


def by_size(free: FreeRanges, size: int, begin: int) -> int:
    """How many ranges are smaller, or as large and begin below the address."""
    low, high = 0, free.counters[COUNT]
    while low < high:
        middle = (low + high) // 2
        if free.size[middle] < size or (free.size[middle] == size and free.low[middle] < begin):
            low = middle + 1
        else:
            high = middle
    return low


def add_range(free: FreeRanges, begin: int, end: int) -> None:
    """Add a range that touches no other."""
    at, rank, count = by_address(free, begin), by_size(free, end - begin, begin), free.counters[COUNT]
    for k in range(count, at, -1):
        free.begin[k], free.end[k] = free.begin[k - 1], free.end[k - 1]
    for k in range(count, rank, -1):
        free.size[k], free.low[k] = free.size[k - 1], free.low[k - 1]
    free.begin[at], free.end[at] = begin, end
    free.size[rank], free.low[rank] = end - begin, begin
    free.counters[COUNT] = count + 1


def remove_range(free: FreeRanges, at: int) -> None:
    """Remove the range that is so many by address."""
    begin, count = free.begin[at], free.counters[COUNT] - 1
    rank = by_size(free, free.end[at] - begin, begin)
    for k in range(at, count):
        free.begin[k], free.end[k] = free.begin[k + 1], free.end[k + 1]
    for k in range(rank, count):
        free.size[k], free.low[k] = free.size[k + 1], free.low[k + 1]
    free.counters[COUNT] = count


def take(free: FreeRanges, size: int, high: int) -> int:
    """Allocate: offset of `size` bytes in the smallest sufficient free range, at its low or its high end."""
    count = free.counters[COUNT]
    rank = by_size(free, size, -1)
    if rank < count:
        at = by_address(free, free.low[rank])
        begin, end = free.begin[at], free.end[at]
        remove_range(free, at)
        offset = end - size if high else begin
        if end - begin > size:
            add_range(free, begin if high else begin + size, offset if high else end)
        return int(offset)
    begin = free.counters[TOP]  # extend a free range that ends at the top
    if count > 0 and free.end[count - 1] == begin:
        begin = free.begin[count - 1]
        remove_range(free, count - 1)
    free.counters[TOP] = begin + size
    return int(begin)


def give(free: FreeRanges, begin: int, end: int) -> None:
    """Free these bytes and merge them with adjacent free ranges."""
    at = by_address(free, begin)
    if at < free.counters[COUNT] and free.begin[at] == end:
        end = free.end[at]
        remove_range(free, at)
    if at > 0 and free.end[at - 1] == begin:
        begin = free.begin[at - 1]
        remove_range(free, at - 1)
    add_range(free, begin, end)


def sweep_storages(swept: Swept, events: Events, free: FreeRanges) -> None:
    """Place the new storages. `free` is empty at first."""
    counters, offset, size = free.counters, swept.offset, swept.size
    for i in swept.placed:
        if offset[i] > counters[TOP]:
            add_range(free, counters[TOP], offset[i])
        counters[TOP] = max(counters[TOP], offset[i] + size[i])
    done, count = 0, len(events.step)
    for i in swept.new:
        while done < count and events.step[done] <= swept.start[i]:
            ended, left = events.storage[done], events.bytes[done]
            if left < size[ended]:
                give(free, offset[ended] + left, offset[ended] + size[ended])
                size[ended] = left
            done += 1
        offset[i] = take(free, size[i], swept.high[i])


KERNELS = Kernels((sweep_storages,))
