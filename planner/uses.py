"""Kernels on the linked lists of uses of a `Board`; see `gaps.py` and `kernels.py`."""

from __future__ import annotations

from typing import Any

# In `Board.counters`.
USES, ADDED, LOOKED, RUNS, EXTRA = range(5)
# In `Board.reads`: a use that was taken out; its `before` still leads back to one that is there.
GONE = 2


def use_before(board: Any, buffer: int, place: int) -> int:
    """The last use of the buffer before `place`, -1 when there is none."""
    low, high = board.first_use[buffer], board.first_use[buffer + 1]
    if low == high or board.place[low] >= place:
        return -1
    while high - low > 1:
        middle = (low + high) // 2
        if board.place[middle] < place:
            low = middle
        else:
            high = middle
    while board.reads[low] == GONE:
        low = board.before[low]
    while board.next[low] >= 0 and board.place[board.next[low]] < place:
        low = board.next[low]
    return int(low)


def add_use(board: Any, last: int, buffer: int, place: int, reads: int) -> int:
    """Put a use into the buffer's list behind `last`."""
    new = board.counters[USES]
    board.counters[USES] += 1
    following = board.next[last]
    board.place[new], board.buffer[new], board.reads[new], board.taker[new] = place, buffer, reads, 0
    board.next[new], board.before[new], board.next[last] = following, last, new
    if following >= 0:
        board.before[following] = new
    # A read splits a gap and leaves to both parts what may be done with it; a dead buffer may be made anew.
    if reads and following >= 0 and board.reads[following]:
        board.free[new] = board.free[following]
    else:
        board.free[new] = 1 if reads and board.producer[buffer] >= 0 else 0
    return int(new)


def remove_use(board: Any, use: int) -> None:
    """Take a use out of its buffer's list."""
    last, following = board.before[use], board.next[use]
    board.next[last] = following
    if following >= 0:
        board.before[following] = last
    board.reads[use] = GONE
