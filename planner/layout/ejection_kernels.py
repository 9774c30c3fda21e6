"""Kernels of the repair of a packing by ejection; see `ejection.py` and `planner/problem/jit.py`."""

from __future__ import annotations

from typing import NamedTuple

from planner.problem.jit import Kernels, Row

# Entries of `Ejection.counters`: storages placed and waiting, the state of the random numbers; offset and weight of the
# cheapest place found, and how many places tie with it; near storages that begin below the end of the place weighed
# last, those that end below its begin, and its weight.
PLACED, WAITING, RANDOM, PLACE, LEAST, TIES, BEGUN, ENDED, WEIGHT = range(9)
COUNTERS = 9
MODULUS = 2147483647
HEAVY = 1 << 62


class Boxes(NamedTuple):
    """r storages to pack."""

    start: Row  # r: first step
    stop: Row  # r: half-open
    size: Row  # r: bytes
    rank: Row  # r: of those that wait, the one with the most is placed next
    growth: Row  # r: what each ejection adds to the weight


class Ejection(NamedTuple):
    """A packing of some of r storages; the others wait for a place."""

    low: Row  # r: offset of a placed storage
    high: Row  # r: its end
    weight: Row  # r: cost of ejecting it
    by_low: Row  # r: the placed storages, ascending
    by_high: Row  # r: the same by their ends
    waiting: Row  # r
    near: Row  # r: scratch: placed storages that are live with the one to place, by offset
    near_ends: Row  # r: scratch: the same by their ends
    counters: Row  # COUNTERS


def rank_of(order: Row, key: Row, count: int, value: int) -> int:
    """How many of order[:count] have a key below `value`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if key[order[middle]] < value:
            low = middle + 1
        else:
            high = middle
    return low


def insert(order: Row, key: Row, count: int, i: int) -> None:
    """Insert i into order[:count], which is sorted by key."""
    at = rank_of(order, key, count, key[i])
    for k in range(count, at, -1):
        order[k] = order[k - 1]
    order[at] = i


def remove(order: Row, key: Row, count: int, i: int) -> None:
    """Remove i from order[:count], which is sorted by key."""
    at = rank_of(order, key, count, key[i])
    while order[at] != i:
        at += 1
    for k in range(at, count - 1):
        order[k] = order[k + 1]


def gather(boxes: Boxes, order: Row, count: int, i: int, near: Row) -> int:
    """Copy those of order[:count] that are live with i to `near`; returns how many they are."""
    start, stop, found = boxes.start[i], boxes.stop[i], 0
    for k in range(count):
        j = order[k]
        if boxes.start[j] < stop and boxes.stop[j] > start:
            near[found] = j
            found += 1
    return found


def weigh_place(t: Ejection, at: int, size: int, count: int) -> int:
    """The weight of the `count` near storages in [at, at + size), and keep the place if it is the cheapest so far.

    Of several one is kept by chance. Places are weighed in ascending order.
    """
    counters, end = t.counters, at + size
    while counters[BEGUN] < count and t.low[t.near[counters[BEGUN]]] < end:
        counters[WEIGHT] += t.weight[t.near[counters[BEGUN]]]
        counters[BEGUN] += 1
    while counters[ENDED] < count and t.high[t.near_ends[counters[ENDED]]] <= at:
        counters[WEIGHT] -= t.weight[t.near_ends[counters[ENDED]]]
        counters[ENDED] += 1
    weight = counters[WEIGHT]
    if weight < counters[LEAST]:
        counters[PLACE], counters[LEAST], counters[TIES] = at, weight, 1
    elif weight == counters[LEAST]:
        counters[TIES] += 1
        counters[RANDOM] = counters[RANDOM] * 48271 % MODULUS  # Park and Miller, 1988
        if counters[RANDOM] % counters[TIES] == 0:
            counters[PLACE] = at
    return int(weight)


def find_place(t: Ejection, size: int, count: int, capacity: int) -> None:
    """Set PLACE and LEAST: the lowest free place among `count` near storages, else the one where the least are.

    A free range begins at the bottom or where a storage ends. Other places begin or end where a storage does.
    """
    last, counters = capacity - size, t.counters
    counters[LEAST] = HEAVY
    counters[BEGUN] = counters[ENDED] = counters[WEIGHT] = 0
    for k in range(-1, count):
        at = 0 if k < 0 else t.high[t.near_ends[k]]
        if at > last:
            break
        if weigh_place(t, at, size, count) == 0:
            return
    counters[BEGUN] = counters[ENDED] = counters[WEIGHT] = 0
    for k in range(count + 1):
        at = last if k == count else min(last, t.low[t.near[k]] - size)
        if at >= 0:
            weigh_place(t, at, size, count)
        if at == last:
            return


def take_first(boxes: Boxes, t: Ejection) -> int:
    """The waiting storage with the highest rank, which waits no longer."""
    first, count = 0, t.counters[WAITING]
    for k in range(1, count):
        if boxes.rank[t.waiting[k]] > boxes.rank[t.waiting[first]]:
            first = k
    i = t.waiting[first]
    t.waiting[first] = t.waiting[count - 1]
    t.counters[WAITING] = count - 1
    return int(i)


def eject(boxes: Boxes, t: Ejection, count: int, at: int, end: int) -> None:
    """Let those of `count` near storages wait that hold bytes of [at, end)."""
    for k in range(count):
        j = t.near[k]
        if t.low[j] >= end:
            return
        if t.high[j] > at:
            remove(t.by_low, t.low, t.counters[PLACED], j)
            remove(t.by_high, t.high, t.counters[PLACED], j)
            t.counters[PLACED] -= 1
            t.waiting[t.counters[WAITING]] = j
            t.counters[WAITING] += 1
            t.weight[j] += boxes.growth[j]


def place_waiting(boxes: Boxes, t: Ejection, capacity: int, moves: int) -> None:
    """Place storages, at most `moves` times, until none waits. None is larger than the capacity."""
    for _ in range(moves):
        if t.counters[WAITING] == 0:
            return
        i = take_first(boxes, t)
        count = gather(boxes, t.by_low, t.counters[PLACED], i, t.near)
        gather(boxes, t.by_high, t.counters[PLACED], i, t.near_ends)
        find_place(t, boxes.size[i], count, capacity)
        at = t.counters[PLACE]
        end = at + boxes.size[i]
        if t.counters[LEAST] > 0:
            eject(boxes, t, count, at, end)
        t.low[i], t.high[i] = at, end
        insert(t.by_low, t.low, t.counters[PLACED], i)
        insert(t.by_high, t.high, t.counters[PLACED], i)
        t.counters[PLACED] += 1


KERNELS = Kernels((place_waiting,))
