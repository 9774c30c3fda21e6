"""Depth-first search for a packing within a capacity; see `canonical.py` and `planner/kernels.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.kernels import Kernels

# What a search says.
NOT_POSSIBLE, PACKED, OUT_OF_WORK = 0, 1, 2
# Entries of `counters`: looks at a section or storage that are left; entries of the log; with so many storages left,
# and at every multiple of `OFTEN`, all sections are looked at, else those of what was placed last.
WORK, LOG, WHOLE = range(3)
OFTEN = 32
# Columns of `sections`: of what is left to place there, and the part of the storages that begin there.
LOWEST, TOTAL, FURTHEST, PART = range(4)
FAR = 1 << 60


def undo(least: Any, log: Any, counters: Any, mark: int) -> None:
    """Lower the offsets again that were raised since the log had `mark` entries."""
    while counters[LOG] > mark:
        counters[LOG] -= 1
        least[log[counters[LOG], 0]] = log[counters[LOG], 1]


def raise_others(
    first: int, last: int, to: int, chosen: int, capacity: int, begin: Any, end: Any, size: Any, least: Any,
    items: Any, log: Any, counters: Any,
) -> int:  # fmt: skip
    """Put `chosen` where it stands lowest: copies the others of items[first:last] to `to` on, above it where they meet.

    The end of the copy, or -1 when one of them no longer fits.
    """
    top = least[chosen] + size[chosen]
    for k in range(first, last):
        other = items[k]
        if other == chosen:
            continue
        items[to] = other
        to += 1
        if begin[other] < end[chosen] and begin[chosen] < end[other] and least[other] < top:
            if top + size[other] > capacity:
                return -1
            log[counters[LOG], 0], log[counters[LOG], 1] = other, least[other]
            counters[LOG] += 1
            least[other] = top
    return to


def look_at_sections(
    here: int, there: int, first: int, last: int, floor: int, capacity: int, begin: Any, end: Any, size: Any,
    least: Any, items: Any, sections: Any, counters: Any,
) -> int:  # fmt: skip
    """How many parts items[first:last] fall into that no item of another is live with, numbered in `sections`.

    -1 when one of the sections from `here` to `there` cannot hold what is left to place there, all of it above the
    lowest offset that one of them can have. Parts are told right when all sections are looked at.
    """
    for s in range(here, there):
        sections[s, LOWEST], sections[s, TOTAL], sections[s, FURTHEST] = FAR, 0, 0
    for k in range(first, last):
        v = items[k]
        from_, to = max(begin[v], here), min(end[v], there)
        counters[WORK] -= 1
        if from_ >= to:
            continue
        at, bytes_ = max(least[v], floor), size[v]
        counters[WORK] -= to - from_
        sections[from_, FURTHEST] = max(sections[from_, FURTHEST], to)
        for s in range(from_, to):
            sections[s, LOWEST] = min(sections[s, LOWEST], at)
            sections[s, TOTAL] += bytes_
    parts, reached = 0, 0
    for s in range(here, there):
        if sections[s, TOTAL] > 0 and sections[s, LOWEST] + sections[s, TOTAL] > capacity:
            return -1
        parts += s >= reached
        reached = max(reached, sections[s, FURTHEST])
        sections[s, PART] = parts
    return parts


def candidates(
    first: int, last: int, to: int, floor: int, rank_before: int, below: int, capacity: int, size: Any, rank: Any,
    least: Any, items: Any,
) -> int:  # fmt: skip
    """Copy to `to` on who may be placed next, lowest first, ties by rank; the end of the copy."""
    end = to
    for k in range(first, last):
        v = items[k]
        at = least[v]
        if at < floor or at >= below or at + size[v] > capacity or (at == floor and rank[v] < rank_before):
            continue
        j = end
        while j > to and (least[items[j - 1]] > at or (least[items[j - 1]] == at and rank[items[j - 1]] > rank[v])):
            items[j] = items[j - 1]
            j -= 1
        items[j] = v
        end += 1
    return end


def pack(
    first: int, last: int, before: int, capacity: int, begin: Any, end: Any, size: Any, rank: Any, least: Any,
    items: Any, sections: Any, log: Any, counters: Any,
) -> int:  # fmt: skip
    """Whether items[first:last] can be placed, on top of `before`, or -1, which was placed last.

    `least` is where each stands lowest above what is placed, and in a packing its offset. `items` has room
    behind `last` for what deeper calls look at.
    """
    if first == last:
        return PACKED
    if counters[WORK] < 0:
        return OUT_OF_WORK
    floor = least[before] if before >= 0 else 0
    below, here, there = FAR, FAR, 0
    for k in range(first, last):
        v = items[k]
        below, here, there = min(below, least[v] + size[v]), min(here, begin[v]), max(there, end[v])
    if below <= floor:
        return NOT_POSSIBLE  # one would fit whole below what was placed last
    mark, count = counters[LOG], last - first
    all_sections = before < 0 or count <= counters[WHOLE] or count % OFTEN == 0
    if not all_sections:
        here, there = begin[before], end[before]
    parts = look_at_sections(
        here, there, first, last, floor, capacity, begin, end, size, least, items, sections, counters
    )  # fmt: skip
    if parts < 0:
        return NOT_POSSIBLE
    if parts > 1 and all_sections:
        for k in range(first, last):
            items[k + count] = sections[begin[items[k]], PART]
        inner = last + count
        for part in range(1, parts + 1):
            to = inner
            for k in range(first, last):
                if items[k + count] == part:
                    items[to] = items[k]
                    to += 1
            found = pack(inner, to, before, capacity, begin, end, size, rank, least, items, sections, log, counters)
            if found != PACKED:
                undo(least, log, counters, mark)
                return found
        return PACKED
    rank_before = rank[before] if before >= 0 else -1
    inner = candidates(first, last, last, floor, rank_before, below, capacity, size, rank, least, items)
    for k in range(last, inner):
        chosen = items[k]
        to = raise_others(first, last, inner, chosen, capacity, begin, end, size, least, items, log, counters)
        if to >= 0:
            found = pack(inner, to, chosen, capacity, begin, end, size, rank, least, items, sections, log, counters)
            if found != NOT_POSSIBLE:
                return found
        undo(least, log, counters, mark)
    return NOT_POSSIBLE


def _signatures() -> Mapping[str, Any]:
    from numba import int64, void

    number, row, table = int64, int64[::1], int64[:, ::1]
    return {
        "undo": void(row, table, row, number),
        "raise_others": number(*[number] * 5, *[row] * 5, table, row),
        "look_at_sections": number(*[number] * 6, *[row] * 5, table, row),
        "candidates": number(*[number] * 7, *[row] * 4),
        "pack": number(*[number] * 4, *[row] * 6, table, table, row),
    }


KERNELS = Kernels((undo, raise_others, look_at_sections, candidates, pack), _signatures, {}, frozenset())
