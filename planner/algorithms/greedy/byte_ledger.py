"""Byte ledger: a row of byte counts with range add and range queries, in blocks of √length, for kernels.

place   0 1 2 3 │ 4 5 6 7 │ 8 9 ...      a range touches at most two blocks in part; of a whole block
add     ────────┼─────────┼───           only `added` changes
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.problem.jit import Kernel, Row

# In `Ledger.limit`: nothing is counted.
NO_LIMIT = -(2**62)


class Ledger(NamedTuple):
    """Bytes at each place: `bytes[i] + added[i // block]`."""

    bytes: Row  # int64[places]
    added: Row  # int64[blocks]
    highest: Row  # int64[blocks]  without `added`
    lowest: Row  # int64[blocks]  without `added`
    counted: Row  # int64[blocks]  entries of `bytes` above the level of the last count in the block
    level: Row  # int64[blocks]  that level while nothing in the block has changed since, else NO_LIMIT
    above: Row  # int64[places + 1]  places before i above the limit of the last `count_once`
    limit: Row  # int64[1]  that limit while nothing has changed since, else NO_LIMIT
    block: int


def ledger_of(places: np.ndarray) -> Ledger:
    """A ledger with these bytes; a single block up to 1024 places."""
    length = len(places)
    block = max(length, 1) if length <= 1024 else 256 if length <= 100_000 else 512
    blocks = -(-length // block)
    starts = np.arange(blocks) * block
    places = np.ascontiguousarray(places, np.int64)
    return Ledger(
        places.copy(),
        np.zeros(blocks, np.int64),
        np.maximum.reduceat(places, starts) if blocks else places,
        np.minimum.reduceat(places, starts) if blocks else places,
        np.zeros(blocks, np.int64),
        np.full(blocks, NO_LIMIT),
        np.zeros(length + 1, np.int64),
        np.full(1, NO_LIMIT),
        block,
    )


def add(ledger: Ledger, begin: int, end: int, amount: int) -> None:
    """Add `amount` to the places [begin, end)."""
    ledger.limit[0] = NO_LIMIT
    block = ledger.block
    first, last = begin // block, (end - 1) // block
    for k in (first, last) if first != last else (first, first):
        add_to_part(ledger.bytes, max(begin, k * block), min(end, (k + 1) * block), amount)
        at, to = k * block, min((k + 1) * block, len(ledger.bytes))
        ledger.highest[k] = highest_of_part(ledger.bytes, at, to)
        ledger.lowest[k] = lowest_of_part(ledger.bytes, at, to)
        ledger.level[k] = NO_LIMIT
        if first == last:
            return
    if first + 1 < last:
        add_to_part(ledger.added, first + 1, last, amount)


def add_to_part(row: Row, begin: int, end: int, amount: int) -> None:
    """Add `amount` to the entries of the row in [begin, end)."""
    row[begin:end] += amount


def highest_of_part(row: Row, begin: int, end: int) -> int:
    """Maximum of the entries of the row in [begin, end), which is not empty."""
    return int(row[begin:end].max())


def lowest_of_part(row: Row, begin: int, end: int) -> int:
    """Minimum of the entries of the row in [begin, end), which is not empty."""
    return int(row[begin:end].min())


def count_part(row: Row, begin: int, end: int, limit: int) -> int:
    """Number of entries of the row in [begin, end) above the limit."""
    return int(np.count_nonzero(row[begin:end] > limit))


def accumulate_part(row: Row, begin: int, end: int, limit: int, above: Row) -> None:
    """Continue the prefix counts `above` of the entries above the limit from `begin` to `end`."""
    above[begin + 1 : end + 1] = np.cumsum(row[begin:end] > limit) + above[begin]


# The same as loops, the form that compiles best: a numpy call in a kernel takes seconds to compile.


def add_to_part_loop(row: Row, begin: int, end: int, amount: int) -> None:
    """`add_to_part` as a loop."""
    for i in range(begin, end):
        row[i] += amount


def highest_of_part_loop(row: Row, begin: int, end: int) -> int:
    """`highest_of_part` as a loop."""
    highest = row[begin]
    for i in range(begin, end):
        highest = max(highest, row[i])
    return int(highest)


def lowest_of_part_loop(row: Row, begin: int, end: int) -> int:
    """`lowest_of_part` as a loop."""
    lowest = row[begin]
    for i in range(begin, end):
        lowest = min(lowest, row[i])
    return int(lowest)


def count_part_loop(row: Row, begin: int, end: int, limit: int) -> int:
    """`count_part` as a loop."""
    count = 0
    for i in range(begin, end):
        count += row[i] > limit
    return count


def accumulate_part_loop(row: Row, begin: int, end: int, limit: int, above: Row) -> None:
    """`accumulate_part` as a loop."""
    count = above[begin]
    for i in range(begin, end):
        count += row[i] > limit
        above[i + 1] = count


#: By the name of the kernel that uses numpy.
LOOPS: dict[str, Kernel] = {
    "add_to_part": add_to_part_loop,
    "highest_of_part": highest_of_part_loop,
    "lowest_of_part": lowest_of_part_loop,
    "count_part": count_part_loop,
    "accumulate_part": accumulate_part_loop,
}


def count_above(ledger: Ledger, begin: int, end: int, limit: int) -> int:
    """Number of places in [begin, end) with more than `limit` bytes."""
    if ledger.limit[0] == limit:
        return int(ledger.above[end] - ledger.above[begin])
    block, count = ledger.block, 0
    for k in range(begin // block, (end - 1) // block + 1):
        level = limit - ledger.added[k]
        if ledger.highest[k] <= level:
            continue
        at, to = max(begin, k * block), min(end, (k + 1) * block)
        if ledger.lowest[k] > level:
            count += to - at
        elif to - at < block:
            count += count_part(ledger.bytes, at, to, level)
        else:
            if ledger.level[k] != level:
                ledger.counted[k], ledger.level[k] = count_part(ledger.bytes, at, to, level), level
            count += ledger.counted[k]
    return int(count)


def count_once(ledger: Ledger, limit: int) -> None:
    """Prefix counts of the places above the limit, which `count_above` uses until the next `add`."""
    block = ledger.block
    for k in range(len(ledger.added)):
        begin, end = k * block, min((k + 1) * block, len(ledger.bytes))
        accumulate_part(ledger.bytes, begin, end, limit - ledger.added[k], ledger.above)
    ledger.limit[0] = limit


def at_place(ledger: Ledger, place: int) -> int:
    """Bytes at one place."""
    return int(ledger.bytes[place] + ledger.added[place // ledger.block])


def highest(ledger: Ledger) -> int:
    """Maximum over all places; not a kernel."""
    return int((ledger.highest + ledger.added).max(initial=0))


def highest_in(ledger: Ledger, begin: int, end: int) -> int:
    """Maximum over the places [begin, end); 0 if empty."""
    block, result = ledger.block, 0
    place = begin
    while place < end:
        k = place // block
        to = min(end, (k + 1) * block)
        if place == k * block and to == (k + 1) * block:
            result = max(result, ledger.highest[k] + ledger.added[k])
        else:
            result = max(result, highest_of_part(ledger.bytes, place, to) + ledger.added[k])
        place = to
    return int(result)
