"""Kernels of the depth-first packing search; see `canonical_search.py` and `planner/problem/jit.py`.

Row d of `least` and of `items` is the state after placing d items: the lowest offset of each item, and the remaining
items, lowest first. Row d of `levels` has the number of remaining items, the item placed next, and the range of
sections around it whose ends no remaining item crosses.
"""

from __future__ import annotations

from planner.problem.jit import Kernels, Row, Table

# Result of a search.
INFEASIBLE, PACKED, WORK_LIMIT = 0, 1, 2
# Where the next item is taken from: any section, or the one with the most failures per spare byte.
ANY_SECTION, FAILED_SECTION = 0, 1
# Entries of `state`: items placed, the changed sections (half-open range), and the section visits left.
DEPTH, FROM, TO, WORK = range(4)
# Columns of `levels`.
LEFT, NEXT, FIRST, LAST = range(4)
# Rows of `sections`: top of the remaining items stacked, the highest possible offset of the lowest item, and the
# lowest top of the items that can be lowest.
REACH, HIGHEST, TOP = range(3)
# With more remaining items than this, inference is limited to the sections of the item just placed.
MAX_PROPAGATE_ALL = 400
FITS = -1
MAX_OFFSET = 1 << 60


def sort_items(least: Row, items: Row, count: int) -> None:
    """Sort items[:count] by least offset; insertion sort, as they are almost sorted."""
    for k in range(1, count):
        v, j = items[k], k
        while j > 0 and least[items[j - 1]] > least[v]:
            items[j] = items[j - 1]
            j -= 1
        items[j] = v


def scan_sections(
    low: int,
    high: int,
    capacity: int,
    least: Row,
    items: Row,
    count: int,
    begin: Row,
    end: Row,
    size: Row,
    sections: Table,
    state: Row,
) -> int:
    """Fill columns `low` to `high` of `sections`; returns a section that cannot hold its remaining items, or FITS."""
    reach, highest, top = sections[REACH], sections[HIGHEST], sections[TOP]
    for s in range(low, high):
        reach[s], highest[s], top[s] = 0, capacity, MAX_OFFSET
    state[WORK] -= count + high - low
    for k in range(count):
        v = items[k]
        at, bytes_, first, last = least[v], size[v], max(begin[v], low), min(end[v], high)
        if first < last:
            state[WORK] -= 8 + last - first
        for s in range(first, last):
            reach[s] = max(reach[s], at) + bytes_
        for s in range(first, last):
            highest[s] -= bytes_
    for s in range(low, high):
        if reach[s] > capacity:
            return s
    for k in range(count):
        v = items[k]
        at, bytes_ = least[v], size[v]
        for s in range(max(begin[v], low), min(end[v], high)):
            if at <= highest[s]:
                top[s] = min(top[s], at + bytes_)
    return FITS


def propagate(
    low: int,
    high: int,
    capacity: int,
    least: Row,
    items: Row,
    count: int,
    begin: Row,
    end: Row,
    size: Row,
    equal_before: Row,
    sections: Table,
    state: Row,
) -> int:
    """Raise `least` by inference in sections `low` to `high`; returns a section that cannot be packed, or FITS."""
    highest, top = sections[HIGHEST], sections[TOP]
    changed = True
    while changed:
        sort_items(least, items, count)
        failed = scan_sections(low, high, capacity, least, items, count, begin, end, size, sections, state)
        if failed != FITS:
            return failed
        changed = False
        for k in range(count):
            v = items[k]
            at = least[v]
            for s in range(max(begin[v], low), min(end[v], high)):
                if least[v] > highest[s]:  # another item is lowest there
                    at = max(at, top[s])
            if equal_before[v] >= 0 and begin[v] < high and low < end[v]:
                at = max(at, least[equal_before[v]] + size[v])
            changed = changed or at > least[v]
            least[v] = at
    return FITS


def section_to_fill(low: int, high: int, capacity: int, sections: Table, failures: Row) -> int:
    """The non-empty section from `low` to `high` with the most failures per spare byte."""
    best, highest_priority = low, -1.0
    for s in range(low, high):
        if sections[REACH, s] > 0:
            priority = failures[s] / (capacity / 1024 + capacity - sections[REACH, s])
            if priority > highest_priority:
                best, highest_priority = s, priority
    return best


def next_item(
    low: int, high: int, least: Row, items: Row, count: int, begin: Row, end: Row, size: Row, rank: Row
) -> int:
    """The lowest item live from `low` to `high`, ties by rank; or an item that fits below it, recursively."""
    found = -1
    for k in range(count):
        v = items[k]
        if begin[v] < high and low < end[v]:
            if found >= 0 and least[v] > least[found]:
                break
            if found < 0 or rank[v] < rank[found]:
                found = v
    k = 0
    while least[items[k]] < least[found]:
        v = items[k]
        k += 1
        if least[v] + size[v] <= least[found] and begin[v] < end[found] and begin[found] < end[v]:
            found, k = v, 0
    return found


def component_of(v: int, items: Row, count: int, begin: Row, end: Row, crossing: Row, level: Row) -> None:
    """Set FIRST and LAST of the level: the range of sections connected to `v` through remaining items."""
    for s in range(len(crossing)):
        crossing[s] = 0
    for k in range(count):
        crossing[begin[items[k]] + 1] += 1
        crossing[end[items[k]]] -= 1
    level[FIRST], level[LAST] = 0, len(crossing) - 1
    here = 0
    for s in range(len(crossing)):
        here += crossing[s]
        if here == 0 and s <= begin[v]:
            level[FIRST] = s
        if here == 0 and s >= end[v]:
            level[LAST] = s
            break


def place_item(
    v: int, least: Row, items: Row, count: int, begin: Row, end: Row, size: Row, deeper: Row, left: Row
) -> None:
    """Place `v` at its least offset: fill the next row, `deeper` and `left`, with the items live with it above."""
    for k in range(len(least)):
        deeper[k] = least[k]
    top, to = least[v] + size[v], 0
    for k in range(count):
        other = items[k]
        if other != v:
            left[to] = other
            to += 1
            if begin[other] < end[v] and begin[v] < end[other]:
                deeper[other] = max(deeper[other], top)


def raise_item(v: int, capacity: int, least: Row, items: Row, count: int, begin: Row, end: Row, size: Row) -> None:
    """Raise `v` from its least offset to the next possible one: on top of another remaining item."""
    lowest = capacity + 1
    for k in range(count):
        other = items[k]
        if other != v and begin[other] < end[v] and begin[v] < end[other]:
            lowest = min(lowest, least[other] + size[other])
    least[v] = lowest


def pack(
    choice: int,
    capacity: int,
    begin: Row,
    end: Row,
    size: Row,
    rank: Row,
    equal_before: Row,
    least: Table,
    items: Table,
    levels: Table,
    sections: Table,
    crossing: Row,
    failures: Row,
    state: Row,
) -> int:
    """Continue a search until it completes or runs out of work; if PACKED, row DEPTH of `least` has the offsets."""
    while state[WORK] >= 0:
        depth = state[DEPTH]
        known, left, count = least[depth], items[depth], levels[depth, LEFT]
        failed = propagate(
            state[FROM], state[TO], capacity, known, left, count, begin, end, size, equal_before, sections, state
        )
        if failed == FITS and count == 0:
            return PACKED
        if failed == FITS:
            low, high = 0, len(failures)
            if choice == FAILED_SECTION:
                if state[TO] - state[FROM] < high:
                    scan_sections(low, high, capacity, known, left, count, begin, end, size, sections, state)
                low = section_to_fill(low, high, capacity, sections, failures)
                high = low + 1
            v = next_item(low, high, known, left, count, begin, end, size, rank)
            levels[depth, NEXT], levels[depth + 1, LEFT] = v, count - 1
            component_of(v, left, count, begin, end, crossing, levels[depth])
            place_item(v, known, left, count, begin, end, size, least[depth + 1], items[depth + 1])
            state[DEPTH] = depth + 1
        else:
            failures[failed] += 1
            depth -= 1
            # Decisions in other parts did not cause the failure.
            while depth >= 0 and not levels[depth, FIRST] <= failed < levels[depth, LAST]:
                depth -= 1
            if depth < 0:
                return INFEASIBLE
            raise_item(levels[depth, NEXT], capacity, least[depth], items[depth], levels[depth, LEFT], begin, end, size)
            state[DEPTH] = depth
        state[FROM], state[TO] = levels[depth, FIRST], levels[depth, LAST]
        if count > MAX_PROPAGATE_ALL:
            state[FROM], state[TO] = begin[levels[depth, NEXT]], end[levels[depth, NEXT]]
    return WORK_LIMIT


KERNELS = Kernels((pack,))
