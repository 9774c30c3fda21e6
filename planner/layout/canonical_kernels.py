"""Depth-first search for a packing within a capacity; see `canonical.py` and `planner/problem/jit.py`.

Row d of `least` and of `items` says what is known once d items are placed: the lowest offset each can have, and
who is left, lowest first. Row d of `levels` says how many are left, who is placed next, and the sections around it
that nobody left crosses the ends of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.problem.jit import Kernels

# What a search says.
INFEASIBLE, PACKED, WORK_LIMIT = 0, 1, 2
# Where the next item is looked for: anywhere, or in the section that failed most for the bytes to spare there.
ANY_SECTION, FAILED_SECTION = 0, 1
# Entries of `state`: items placed, the sections that have changed, half-open, and looks at a section that are left.
DEPTH, FROM, TO, WORK = range(4)
# Columns of `levels`.
LEFT, NEXT, FIRST, LAST = range(4)
# Rows of `sections`: bytes that what is left reaches up to, the highest offset the lowest item there can have, and the
# lowest top of those that can be the lowest.
REACH, HIGHEST, TOP = range(3)
# While more are left than this, only the sections of what was placed are looked at.
WHOLE = 400
FITS = -1
MAX_OFFSET = 1 << 60


def sort_items(least: Any, items: Any, count: int) -> None:
    """Sort items[:count] by least offset; quick where they almost are."""
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
    least: Any,
    items: Any,
    count: int,
    begin: Any,
    end: Any,
    size: Any,
    sections: Any,
    state: Any,
) -> int:
    """Fill the columns from `low` to `high` of `sections`; a section that cannot hold what is left there, or FITS."""
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
    least: Any,
    items: Any,
    count: int,
    begin: Any,
    end: Any,
    size: Any,
    twin: Any,
    sections: Any,
    state: Any,
) -> int:
    """Raise `least` to what the sections from `low` to `high` imply; one that cannot be packed, or FITS."""
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
                if least[v] > highest[s]:  # another is lowest there
                    at = max(at, top[s])
            if twin[v] >= 0 and begin[v] < high and low < end[v]:
                at = max(at, least[twin[v]] + size[v])
            changed = changed or at > least[v]
            least[v] = at
    return FITS


def section_to_fill(low: int, high: int, capacity: int, sections: Any, failures: Any) -> int:
    """Of those from `low` to `high` with something left the one that failed most for the bytes to spare in it."""
    found, most = low, -1.0
    for s in range(low, high):
        if sections[REACH, s] > 0:
            wanted = failures[s] / (capacity / 1024 + capacity - sections[REACH, s])
            if wanted > most:
                found, most = s, wanted
    return found


def next_item(
    low: int, high: int, least: Any, items: Any, count: int, begin: Any, end: Any, size: Any, rank: Any
) -> int:
    """The lowest item live from `low` to `high`, ties by rank, or one that fits below it, and so on down."""
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


def component_of(v: int, items: Any, count: int, begin: Any, end: Any, crossing: Any, level: Any) -> None:
    """Set FIRST and LAST of the level: the sections that items depend on which depend on `v`."""
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
    v: int, least: Any, items: Any, count: int, begin: Any, end: Any, size: Any, deeper: Any, left: Any
) -> None:
    """Fill the next row, `deeper` and `left`: `v` lies at its least offset, those live with it above."""
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


def raise_item(v: int, capacity: int, least: Any, items: Any, count: int, begin: Any, end: Any, size: Any) -> None:
    """Raise `v` from its least offset to the next it may have: on top of another that is left."""
    lowest = capacity + 1
    for k in range(count):
        other = items[k]
        if other != v and begin[other] < end[v] and begin[v] < end[other]:
            lowest = min(lowest, least[other] + size[other])
    least[v] = lowest


def pack(
    choice: int,
    capacity: int,
    begin: Any,
    end: Any,
    size: Any,
    rank: Any,
    twin: Any,
    least: Any,
    items: Any,
    levels: Any,
    sections: Any,
    crossing: Any,
    failures: Any,
    state: Any,
) -> int:
    """Go on with a search until it ends or is out of work; row DEPTH of `least` then has the offsets of a packing."""
    while state[WORK] >= 0:
        depth = state[DEPTH]
        known, left, count = least[depth], items[depth], levels[depth, LEFT]
        failed = propagate(
            state[FROM], state[TO], capacity, known, left, count, begin, end, size, twin, sections, state
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
            # What was placed in other parts has nothing to do with it.
            while depth >= 0 and not levels[depth, FIRST] <= failed < levels[depth, LAST]:
                depth -= 1
            if depth < 0:
                return INFEASIBLE
            raise_item(levels[depth, NEXT], capacity, least[depth], items[depth], levels[depth, LEFT], begin, end, size)
            state[DEPTH] = depth
        state[FROM], state[TO] = levels[depth, FIRST], levels[depth, LAST]
        if count > WHOLE:
            state[FROM], state[TO] = begin[levels[depth, NEXT]], end[levels[depth, NEXT]]
    return WORK_LIMIT


def _signatures() -> Mapping[str, Any]:
    from numba import int64, void  # heavy: half a second, and not needed where nothing is compiled

    number, row, table = int64, int64[::1], int64[:, ::1]
    return {
        "sort_items": void(row, row, number),
        "scan_sections": number(*[number] * 3, row, row, number, row, row, row, table, row),
        "propagate": number(*[number] * 3, row, row, number, *[row] * 4, table, row),
        "section_to_fill": number(*[number] * 3, table, row),
        "next_item": number(number, number, row, row, number, *[row] * 4),
        "component_of": void(number, row, number, *[row] * 4),
        "place_item": void(number, row, row, number, *[row] * 5),
        "raise_item": void(number, number, row, row, number, *[row] * 3),
        "pack": number(number, number, *[row] * 5, *[table] * 4, *[row] * 3),
    }


KERNELS = Kernels(
    (sort_items, scan_sections, propagate, section_to_fill, next_item, component_of, place_item, raise_item, pack),
    _signatures,
    {},
    frozenset(),
)
