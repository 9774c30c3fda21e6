"""Kernels on the linked use lists of a `GapTable` and on its chain of runs; see `gaps.py` and `problem/jit.py`."""

from __future__ import annotations

from planner.algorithms.greedy.gaps import GapTable
from planner.problem.jit import Row

# Entries of `GapTable.counters`.
USES, ADDED, LOOKED, RUNS, EXTRA, STOP = range(6)
# In `GapTable.reads`: a removed use; its `before` still leads to a use in the list.
REMOVED = 2


def use_before(board: GapTable, buffer: int, place: int) -> int:
    """The last use of the buffer before `place`; -1: none."""
    low, high = board.first_use[buffer], board.first_use[buffer + 1]
    if low == high or board.place[low] >= place:
        return -1
    while high - low > 1:
        middle = (low + high) // 2
        if board.place[middle] < place:
            low = middle
        else:
            high = middle
    while board.reads[low] == REMOVED:
        low = board.before[low]
    while board.next[low] >= 0 and board.place[board.next[low]] < place:
        low = board.next[low]
    return int(low)


def add_use(board: GapTable, last: int, buffer: int, place: int, reads: int) -> int:
    """Insert a use into the buffer's list after `last`; returns its number."""
    new = board.counters[USES]
    board.counters[USES] += 1
    following = board.next[last]
    board.place[new], board.buffer[new], board.reads[new], board.taker[new] = place, buffer, reads, 0
    board.next[new], board.before[new], board.next[last] = following, last, new
    if following >= 0:
        board.before[following] = new
    # A read splits a gap; both parts inherit `free`. A dead buffer may be recomputed.
    if reads and following >= 0 and board.reads[following]:
        board.free[new] = board.free[following]
    else:
        board.free[new] = 1 if reads and board.producer[buffer] >= 0 else 0
    return int(new)


def remove_use(board: GapTable, use: int) -> None:
    """Unlink a use from its buffer's list."""
    last, following = board.before[use], board.next[use]
    board.next[last] = following
    if following >= 0:
        board.before[following] = last
    board.reads[use] = REMOVED


def sort_chain(board: GapTable) -> None:
    """Sort the chain by task number, the order in which it runs."""
    for run in range(1, board.counters[RUNS]):
        task, slot = board.chain[run], run
        while slot > 0 and board.chain[slot - 1] > task:
            board.chain[slot] = board.chain[slot - 1]
            slot -= 1
        board.chain[slot] = task


def chain_bytes(board: GapTable, at: int, token: int) -> int:
    """Maximum bytes that the chain needs while it runs, beyond the bytes held across `at` with and without it.

    A buffer read after `at` counts as held across it, so its bytes are subtracted until it is written.
    """
    now = 0
    for run in range(board.counters[RUNS]):
        now -= bytes_held_across(board, run, at, token)
    highest = 0
    for run in range(board.counters[RUNS]):
        task = board.chain[run]
        for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
            if not board.resident[board.write_index[entry]]:
                now += board.size[board.write_index[entry]]
        highest = max(highest, now + board.workspace[task])
        now -= brief_bytes(board, board.write_index, board.write_pointer, run, token)
        now -= brief_bytes(board, board.read_index, board.read_pointer, run, token)
    return int(highest)


def bytes_held_across(board: GapTable, run: int, at: int, token: int) -> int:
    """Bytes of outputs of a run of the chain that are read after `at`; fills `brief` and `last_run` of the others."""
    task, held = board.chain[run], 0
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if not board.resident[b]:
            following = board.next[use_before(board, b, at)]
            board.brief[b] = 0
            if following >= 0 and board.reads[following] == 1:
                held += board.size[b]
            else:
                board.brief[b] = token
                board.last_run[b] = run
    for entry in range(board.read_pointer[task], board.read_pointer[task + 1]):
        board.last_run[board.read_index[entry]] = run
    return int(held)


def brief_bytes(board: GapTable, index: Row, pointer: Row, run: int, token: int) -> int:
    """Bytes of the buffers of a run (its row of `index`) that only the chain uses, and none after this run."""
    task, brief = board.chain[run], 0
    for entry in range(pointer[task], pointer[task + 1]):
        b = index[entry]
        if board.brief[b] == token and board.last_run[b] == run:
            brief += board.size[b]
    return int(brief)
