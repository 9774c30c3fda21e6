"""Kernels of the depth-first packing search; see `canonical_search.py` and `planner/problem/jit.py`.

Items are numbered. After placing d of them, row d of `SearchState.least` has the lowest offset of each item, and row d
of `SearchState.left` the remaining items, lowest first. A range of sections is half-open.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.problem.jit import Kernels, Row, Table

# Result of a search.
INFEASIBLE, PACKED, WORK_LIMIT = 0, 1, 2
# Where the next item is taken from: any section, or the one with the most failures per spare byte.
ANY_SECTION, FAILED_SECTION = 0, 1
# Entries of `SearchState.counters`: items placed, the range of changed sections, and the section visits left.
DEPTH, FROM, TO, WORK = range(4)
# Columns of `SearchState.levels`.
LEFT, NEXT, FIRST, LAST = range(4)
# Rows of `SearchState.sections`: top of the remaining items stacked, highest possible offset of the lowest item, lowest
# top of the items that can be lowest.
REACH, HIGHEST, TOP = range(3)
# With more remaining items than this, inference is limited to the sections of the item just placed.
MAX_PROPAGATE_ALL = 400
FITS = -1
MAX_OFFSET = 1 << 60


class Items(NamedTuple):
    """r items to pack."""

    begin: Row  # r: first section
    end: Row  # r: half-open
    size: Row  # r: bytes
    rank: Row  # r: breaks ties between lowest items
    equal_before: Row  # r: the previous equal item, which lies lower, or -1


class SearchState(NamedTuple):
    """The state of a search over r items in s sections."""

    least: Table  # r + 1, r
    left: Table  # r + 1, r
    levels: Table  # r + 1, 4: remaining items, the item placed next, sections around it that no remaining item leaves
    sections: Table  # 3, s
    crossing: Row  # s + 1: scratch
    failures: Row  # s: how often a section could not be packed
    counters: Row  # 4


def overlap(items: Items, a: int, b: int) -> bool:
    """Whether two items share a section."""
    return bool(items.begin[a] < items.end[b] and items.begin[b] < items.end[a])


def sort_items(least: Row, left: Row, count: int) -> None:
    """Sort left[:count] by least offset; insertion sort, as they are almost sorted."""
    for k in range(1, count):
        v, j = left[k], k
        while j > 0 and least[left[j - 1]] > least[v]:
            left[j] = left[j - 1]
            j -= 1
        left[j] = v


def scan_sections(items: Items, state: SearchState, depth: int, low: int, high: int, capacity: int) -> int:
    """Fill columns `low` to `high` of `sections`; returns a section that cannot hold its remaining items, or FITS."""
    least, left, count = state.least[depth], state.left[depth], state.levels[depth, LEFT]
    reach, highest, top = state.sections[REACH], state.sections[HIGHEST], state.sections[TOP]
    for s in range(low, high):
        reach[s], highest[s], top[s] = 0, capacity, MAX_OFFSET
    work = count + high - low
    for k in range(count):
        v = left[k]
        at, bytes_, first, last = least[v], items.size[v], max(items.begin[v], low), min(items.end[v], high)
        if first < last:
            work += 8 + last - first
        for s in range(first, last):
            reach[s] = max(reach[s], at) + bytes_
        for s in range(first, last):
            highest[s] -= bytes_
    state.counters[WORK] -= work
    for s in range(low, high):
        if reach[s] > capacity:
            return s
    for k in range(count):
        v = left[k]
        at, bytes_ = least[v], items.size[v]
        for s in range(max(items.begin[v], low), min(items.end[v], high)):
            if at <= highest[s]:
                top[s] = min(top[s], at + bytes_)
    return FITS


def propagate(items: Items, state: SearchState, depth: int, capacity: int) -> int:
    """Raise `least` by inference in the changed sections; returns a section that cannot be packed, or FITS."""
    low, high = state.counters[FROM], state.counters[TO]
    least, left, count = state.least[depth], state.left[depth], state.levels[depth, LEFT]
    highest, top = state.sections[HIGHEST], state.sections[TOP]
    changed = True
    while changed:
        sort_items(least, left, count)
        failed = scan_sections(items, state, depth, low, high, capacity)
        if failed != FITS:
            return failed
        changed = False
        for k in range(count):
            v = left[k]
            at, equal = least[v], items.equal_before[v]
            for s in range(max(items.begin[v], low), min(items.end[v], high)):
                if least[v] > highest[s]:  # another item is lowest there
                    at = max(at, top[s])
            if equal >= 0 and items.begin[v] < high and low < items.end[v]:
                at = max(at, least[equal] + items.size[v])
            changed = changed or at > least[v]
            least[v] = at
    return FITS


def section_to_fill(state: SearchState, capacity: int) -> int:
    """The non-empty section with the most failures per spare byte."""
    best, highest_priority = 0, -1.0
    for s in range(len(state.failures)):
        if state.sections[REACH, s] > 0:
            priority = state.failures[s] / (capacity / 1024 + capacity - state.sections[REACH, s])
            if priority > highest_priority:
                best, highest_priority = s, priority
    return best


def next_item(items: Items, state: SearchState, depth: int, low: int, high: int) -> int:
    """The lowest item live from `low` to `high`, ties by rank; or an item that fits below it, recursively."""
    least, left, found = state.least[depth], state.left[depth], -1
    for k in range(state.levels[depth, LEFT]):
        v = left[k]
        if items.begin[v] < high and low < items.end[v]:
            if found >= 0 and least[v] > least[found]:
                break
            if found < 0 or items.rank[v] < items.rank[found]:
                found = v
    k = 0
    while least[left[k]] < least[found]:
        v = left[k]
        k += 1
        if least[v] + items.size[v] <= least[found] and overlap(items, v, found):
            found, k = v, 0
    return found


def mark_component(items: Items, state: SearchState, depth: int, v: int) -> None:
    """Set FIRST and LAST of the level: the range of sections connected to `v` through remaining items."""
    left, crossing, level = state.left[depth], state.crossing, state.levels[depth]
    for s in range(len(crossing)):
        crossing[s] = 0
    for k in range(level[LEFT]):
        crossing[items.begin[left[k]] + 1] += 1
        crossing[items.end[left[k]]] -= 1
    level[FIRST], level[LAST] = 0, len(crossing) - 1
    here = 0
    for s in range(len(crossing)):
        here += crossing[s]
        if here == 0 and s <= items.begin[v]:
            level[FIRST] = s
        if here == 0 and s >= items.end[v]:
            level[LAST] = s
            break


def place_item(items: Items, state: SearchState, depth: int, v: int) -> None:
    """Place `v` at its least offset: fill the next row of the state, with the items live with it above."""
    least, left, count = state.least[depth], state.left[depth], state.levels[depth, LEFT]
    deeper, remaining = state.least[depth + 1], state.left[depth + 1]
    for k in range(len(least)):
        deeper[k] = least[k]
    top, to = least[v] + items.size[v], 0
    for k in range(count):
        other = left[k]
        if other != v:
            remaining[to] = other
            to += 1
            if overlap(items, v, other):
                deeper[other] = max(deeper[other], top)
    state.levels[depth, NEXT], state.levels[depth + 1, LEFT] = v, to


def raise_item(items: Items, state: SearchState, depth: int, v: int, capacity: int) -> None:
    """Raise `v` from its least offset to the next possible one: on top of another remaining item."""
    least, left, lowest = state.least[depth], state.left[depth], capacity + 1
    for k in range(state.levels[depth, LEFT]):
        other = left[k]
        if other != v and overlap(items, v, other):
            lowest = min(lowest, least[other] + items.size[other])
    least[v] = lowest


def pack(items: Items, state: SearchState, choice: int, capacity: int) -> int:
    """Continue a search until it completes or runs out of work; if PACKED, row DEPTH of `least` has the offsets."""
    counters, levels, failures = state.counters, state.levels, state.failures
    while counters[WORK] >= 0:
        depth = counters[DEPTH]
        count = levels[depth, LEFT]
        failed = propagate(items, state, depth, capacity)
        if failed == FITS and count == 0:
            return PACKED
        if failed == FITS:
            low, high = 0, len(failures)
            if choice == FAILED_SECTION:
                if counters[TO] - counters[FROM] < high:
                    scan_sections(items, state, depth, low, high, capacity)
                low = section_to_fill(state, capacity)
                high = low + 1
            v = next_item(items, state, depth, low, high)
            mark_component(items, state, depth, v)
            place_item(items, state, depth, v)
            counters[DEPTH] = depth + 1
        else:
            failures[failed] += 1
            depth -= 1
            # Decisions in other parts did not cause the failure.
            while depth >= 0 and not levels[depth, FIRST] <= failed < levels[depth, LAST]:
                depth -= 1
            if depth < 0:
                return INFEASIBLE
            raise_item(items, state, depth, levels[depth, NEXT], capacity)
            counters[DEPTH] = depth
        counters[FROM], counters[TO] = levels[depth, FIRST], levels[depth, LAST]
        if count > MAX_PROPAGATE_ALL:
            placed = levels[depth, NEXT]
            counters[FROM], counters[TO] = items.begin[placed], items.end[placed]
    return WORK_LIMIT


KERNELS = Kernels((pack,))
