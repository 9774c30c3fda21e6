"""Rows of states of the chain: order, selection and copies, with numpy and as loops for compiled kernels.

A numpy call in a kernel takes seconds to compile; see `problem/jit.py`.
"""

from __future__ import annotations

import numpy as np

from planner.problem.jit import Kernel, Reals, Row, Table

# Columns of a state of the chain: bytes saved so far against the base order, ticks, bits of the dropped leads, the
# state that it extends, the plan taken there and the block of that state.
BYTES, COST, LEADS, FROM, PLAN, PLACE = range(6)
STATE = 6


def rank_states(states: Table, count: int, rank: Table) -> None:
    """Fill rank[0] with the numbers of the states, sorted by cost, then bytes, then number; rank[1] is scratch."""
    rank[0, :count] = np.lexsort((states[:count, BYTES], states[:count, COST]))


def rank_states_loop(states: Table, count: int, rank: Table) -> None:
    """`rank_states` as a merge sort of runs of doubling length."""
    for k in range(count):
        rank[0, k] = k
    source, length = 0, 1
    while length < count:
        for begin in range(0, count, 2 * length):
            left, right = begin, min(begin + length, count)
            middle, end = right, min(begin + 2 * length, count)
            for to in range(begin, end):
                takes_right = left == middle
                if left < middle and right < end:
                    a, b = rank[source, left], rank[source, right]
                    takes_right = states[b, COST] < states[a, COST] or (
                        states[b, COST] == states[a, COST] and states[b, BYTES] < states[a, BYTES]
                    )
                if takes_right:
                    rank[1 - source, to] = rank[source, right]
                    right += 1
                else:
                    rank[1 - source, to] = rank[source, left]
                    left += 1
        source, length = 1 - source, 2 * length
    if source == 1:
        for k in range(count):
            rank[0, k] = rank[1, k]


def nth_smallest(values: Reals, count: int, n: int) -> float:
    """The entry of number `n` of the first `count` values if they were sorted; reorders them."""
    return float(np.partition(values[:count], n)[n])


def nth_smallest_loop(values: Reals, count: int, n: int) -> float:
    """`nth_smallest` by Hoare's algorithm FIND (1961)."""
    low, high = 0, count - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if j < n:
            low = i
        if n < i:
            high = j
    return float(values[n])


def copy_row(source: Row, target: Row) -> None:
    """Copy a state."""
    for column in range(STATE):
        target[column] = source[column]


def copy_rows(source: Table, count: int, target: Table) -> None:
    """Copy the first `count` states."""
    target[:count] = source[:count]


def copy_rows_loop(source: Table, count: int, target: Table) -> None:
    """`copy_rows` as a loop."""
    for i in range(count):
        for column in range(STATE):
            target[i, column] = source[i, column]


#: By the name of the kernel that uses numpy.
LOOPS: dict[str, Kernel] = {
    "rank_states": rank_states_loop,
    "nth_smallest": nth_smallest_loop,
    "copy_rows": copy_rows_loop,
}
