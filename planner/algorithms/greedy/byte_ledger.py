"""Byte ledger: a row of byte counts with range add and range queries, in blocks of √length, for kernels.

place   0 1 2 3 │ 4 5 6 7 │ 8 9 ...      a range touches at most two blocks in part; of a whole block
add     ────────┼─────────┼───           only `added` changes
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.problem.jit import Row

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
        part = ledger.bytes[max(begin, k * block) : min(end, (k + 1) * block)]
        part += amount
        whole = ledger.bytes[k * block : (k + 1) * block]
        ledger.highest[k] = whole.max()
        ledger.lowest[k] = whole.min()
        ledger.level[k] = NO_LIMIT
        if first == last:
            return
    if first + 1 < last:
        between = ledger.added[first + 1 : last]
        between += amount


def count_part(row: Row, begin: int, end: int, limit: int) -> int:
    """Number of entries of the row in [begin, end) above the limit."""
    return int(np.count_nonzero(row[begin:end] > limit))


def count_part_loop(row: Row, begin: int, end: int, limit: int) -> int:
    """`count_part` as an explicit loop, the form that compiles best."""
    count = 0
    for i in range(begin, end):
        count += row[i] > limit
    return count


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
        here = np.cumsum(ledger.bytes[begin:end] > limit - ledger.added[k])
        ledger.above[begin + 1 : end + 1] = here + ledger.above[begin]
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
            result = max(result, ledger.bytes[place:to].max() + ledger.added[k])
        place = to
    return int(result)
