"""Kernels that remove recomputations which the limit does not need; see `gaps.py`."""

from __future__ import annotations

from planner.algorithms.greedy.byte_ledger import LOOPS, Ledger, add, highest_in
from planner.algorithms.greedy.gaps import GapTable
from planner.algorithms.greedy.use_list_kernels import STOP, remove_use, use_before
from planner.problem.jit import Kernels, Row


def hold_instead(board: GapTable, ledger: Ledger, task: int, place: int, sign: int) -> None:
    """Hold the outputs of the run at `place` since their last use instead of recomputing; sign -1 undoes that."""
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if board.resident[b]:
            continue
        last = use_before(board, b, place)
        following = board.next[board.next[last]]
        if following >= 0 and board.reads[following] == 1:
            add(ledger, board.place[last] + 1, place, board.size[b] * sign)
            if board.taker[last] > 0:
                add(ledger, board.place[last], board.place[last] + 1, board.taker[last] * sign)


def is_within(board: GapTable, ledger: Ledger, task: int, place: int, limit: int) -> bool:
    """Whether all places between the last use of the task's outputs and `place` are within `limit`."""
    for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
        b = board.write_index[entry]
        if board.resident[b]:
            continue
        last = use_before(board, b, place)
        if highest_in(ledger, max(board.place[last], 0), place) > limit:
            return False
    return True


def drop_runs(board: GapTable, ledger: Ledger, steps: Row, tasks: Row, limit: int, dropped: Row) -> None:
    """Remove the runs at the given steps that `limit` does not need, in that order; mark them in `dropped`.

    Ends early once `board.counters[STOP]` is set.
    """
    for i in range(len(steps)):
        if board.counters[STOP]:
            break
        task, place = tasks[i], 2 * steps[i] + 1
        hold_instead(board, ledger, task, place, 1)
        if not is_within(board, ledger, task, place, limit):
            hold_instead(board, ledger, task, place, -1)
            continue
        dropped[i] = 1
        for entry in range(board.write_pointer[task], board.write_pointer[task + 1]):
            b = board.write_index[entry]
            if board.resident[b]:
                continue
            last = use_before(board, b, place)
            board.taker[last] = 0
            remove_use(board, board.next[last])
        for entry in range(board.read_pointer[task], board.read_pointer[task + 1]):
            c = board.read_index[entry]
            if board.resident[c]:
                continue
            last = use_before(board, c, place)
            read = board.next[last]
            following = board.next[read]
            if following < 0 or board.reads[following] != 1:
                add(ledger, max(board.place[last] + 1, 0), place + 1, -board.size[c])
            remove_use(board, read)


KERNELS = Kernels((drop_runs,), LOOPS)
