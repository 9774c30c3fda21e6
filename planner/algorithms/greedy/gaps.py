"""Idle gaps of an order: the intervals in which a buffer is held without being used.

Places on the axis are steps and the boundaries before them: boundary r is place 2r, step r is 2r + 1.
All uses of a buffer are one linked list, ordered by place:

    step            0       1       2       3       4
    place       0   1   2   3   4   5   6   7   8   9
    buffer b        W───────R···············R                 a gap from place 4 to 8
    after           W───────R           W───R    recomputed at boundary 3, place 6
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.algorithms.greedy.byte_ledger import Ledger, ledger_of
from planner.problem import DEVICE, HANDED_OUT, RESIDENT, TO_LAST_READ, TO_THE_END, Problem, liveness
from planner.problem.columns import sum_over_intervals
from planner.problem.jit import Row
from planner.problem.plan import Lifetimes, Order
from planner.problem.recompute import last_recompute_step

#: Maximum runs to close one gap.
CHAIN = 64


class GapTable(NamedTuple):
    """One order in the form that the kernels of `gap_kernels.py` read and modify. Lists or int64 arrays throughout.

    Of n tasks, m buffers, s steps and u uses; u leaves room for the uses that kernels add.
    """

    order: Row  # s
    cost: Row  # n
    workspace: Row  # n
    latest: Row  # n  last boundary at which the task may be recomputed, -1: never
    read_pointer: Row  # n + 1
    read_index: Row
    write_pointer: Row  # n + 1
    write_index: Row
    size: Row  # m  device bytes
    producer: Row  # m  -1 none
    resident: Row  # m  1: always there
    first_use: Row  # m + 1  base uses of buffer b are [first_use[b], first_use[b + 1])
    place: Row  # u
    next: Row  # u  next use of the same buffer, -1 none
    before: Row  # u  the use before it, -1 none
    reads: Row  # u  1: a read, 0: a write
    buffer: Row  # u
    free: Row  # u  1: the gap before this read may be closed by another run
    taker: Row  # u  bytes that take this buffer's storage over at this use
    busy: Row  # s + 1  maximum extra bytes that runs added at each boundary need while they run
    stamp: Row  # m  last candidate that wrote or kept the buffer
    brief: Row  # m  candidate whose chain writes the buffer for its own use only
    last_run: Row  # m  place in the chain that needs it last
    chain: Row  # CHAIN  tasks the candidate runs
    added_at: Row  # boundaries of the runs added so far
    added_task: Row
    counters: Row  # uses, runs added, candidates looked at, tasks in `chain`, bytes it needs, 1 once cancelled


#: A column of more entries takes so long that a cancel is looked for after it.
MAX_UNCHECKED = 10_000


@dataclass(frozen=True, eq=False, slots=True)
class EvaluatedOrder:
    """An order with its lifetimes, bytes per step and peak."""

    order: Order
    lives: Lifetimes
    step_bytes: np.ndarray  # int64[s]
    peak: int  # bytes


def evaluate_order(problem: Problem, order: Order, lives: Lifetimes | None = None) -> EvaluatedOrder:
    """The order with its lifetimes (computed unless given), bytes per step and peak."""
    order = np.asarray(order, np.int64)
    lives = liveness.lifetimes(problem, order) if lives is None else lives
    step_bytes = liveness.profile(problem, order, lives)
    return EvaluatedOrder(
        order, lives, step_bytes, int(step_bytes.max()) if len(order) else liveness.peak(problem, order)
    )


def gap_table_of(
    problem: Problem,
    repeatable: np.ndarray,
    sequence: EvaluatedOrder,
    room: int,
    as_lists: bool,
    check: Callable[[], None] = lambda: None,
) -> tuple[GapTable, Ledger]:
    """(table, ledger of places) of an order, with space for `room` more uses.

    `repeatable` is bool[n]: the task may be recomputed. `check` is called on the way and may raise to cancel.
    """
    order, lives = sequence.order, sequence.lives
    place, buffer, is_read, free, taker = _uses(problem, order, lives)
    check()
    uses, steps = len(place), len(order)
    first_use = np.searchsorted(buffer, np.arange(problem.buffers + 1))
    following = np.arange(1, uses + 1)
    following[first_use[1:][first_use[1:] > first_use[:-1]] - 1] = -1
    preceding = np.arange(-1, uses - 1)
    preceding[first_use[:-1][first_use[1:] > first_use[:-1]]] = -1
    size = np.where(problem.space == DEVICE, problem.size, 0)

    def column(values: np.ndarray, extra: int = 0) -> list[int]:
        array = np.concatenate([values.astype(np.int64), np.zeros(extra, np.int64)])
        if len(array) > MAX_UNCHECKED:
            check()
        return array.tolist() if as_lists else array  # type: ignore[return-value]

    empty = np.zeros(0, np.int64)
    board = GapTable(
        column(order),
        column(problem.cost),
        column(problem.workspace),
        column(_latest(problem, repeatable, order)),
        column(problem.reads.pointer),
        column(problem.reads.index),
        column(problem.writes.pointer),
        column(problem.writes.index),
        column(size),
        column(problem.producer()),
        column(problem.hold == RESIDENT),
        column(first_use),
        column(place, room),
        column(following, room),
        column(preceding, room),
        column(is_read, room),
        column(buffer, room),
        column(free, room),
        column(taker, room),
        column(empty, steps + 1),
        column(empty, problem.buffers),
        column(empty, problem.buffers),
        column(empty, problem.buffers),
        column(empty, CHAIN),
        column(empty, room),
        column(empty, room),
        column(np.array([uses, 0, 0, 0, 0, 0])),
    )
    return board, ledger_of(_places(problem, sequence))


def _latest(problem: Problem, repeatable: np.ndarray, order: Order) -> np.ndarray:
    """int64[n]: the last boundary at which each task may be recomputed; -1: never."""
    latest = last_recompute_step(problem, order)
    writer, written = problem.writes.row_of_entry(), problem.writes.index
    handed = problem.hold[written] == HANDED_OUT
    if handed.any():  # a copy made after the hand-out lies beside what was handed out
        phase = problem.phase[problem.producer()[written[handed]]]
        np.minimum.at(latest, writer[handed], liveness.phase_ends(problem, order)[phase] - 1)
    latest[~repeatable] = -1
    return latest


def _uses(problem: Problem, order: Order, lives: Lifetimes) -> tuple[np.ndarray, ...]:
    """(place, buffer, is a read, gap may be closed, bytes that take over) of every use, by buffer and place."""
    steps, count = len(order), len(lives.buffer)
    initial = np.flatnonzero((lives.writer_step < 0) & (problem.hold[lives.buffer] != RESIDENT))
    reader_step, read = lives.read_instance.row_of_entry(), lives.read_instance.index
    write_step, written = lives.written_instance.row_of_entry(), lives.written_instance.index
    to_end = np.flatnonzero((problem.hold[lives.buffer] == TO_THE_END) & (lives.stop == steps))
    handed = np.flatnonzero((problem.hold[lives.buffer] == HANDED_OUT) & (lives.stop == steps))
    producer = problem.producer()[lives.buffer[handed]]
    phase = np.where(producer < 0, 0, problem.phase[producer])
    hand_out = np.maximum(liveness.phase_ends(problem, order)[phase] - 1, lives.start[handed])
    at = [
        initial * 0 - 1,
        2 * reader_step + 1,
        2 * write_step + 1,
        2 * hand_out + 1,
        np.full(len(to_end) + len(handed), 2 * steps + 1),
    ]
    instance = np.concatenate([initial, read, written, handed, to_end, handed])
    is_read = np.concatenate(
        [np.full(len(part), flag) for part, flag in zip(at, (False, True, False, True, True), strict=True)]
    )
    place, buffer = np.concatenate(at), lives.buffer[instance]
    # The storage is held from the hand-out on: later gaps cannot be closed.
    fixed = np.full(count, 2 * steps + 2)
    fixed[handed] = 2 * hand_out + 1
    free = is_read & (place <= fixed[instance]) & (problem.producer()[buffer] >= 0)
    taker = np.zeros(count, np.int64)
    takers = np.flatnonzero(lives.taken_from >= 0)
    taker[lives.taken_from[takers]] = problem.size[lives.buffer[takers]]
    last_read = is_read & (place == 2 * lives.stop[instance] - 1)
    bytes_taken = np.where(last_read, taker[instance], 0)
    # A task that reads and writes a buffer reads it first.
    by = np.lexsort((~is_read, place, buffer))
    by = by[problem.hold[buffer[by]] != RESIDENT]
    return place[by], buffer[by], is_read[by], free[by], bytes_taken[by]


def _places(problem: Problem, sequence: EvaluatedOrder) -> np.ndarray:
    """int64[2s + 2]: bytes of each step, and at each boundary the bytes held across it."""
    lives, steps = sequence.lives, len(sequence.order)
    size = np.where(problem.space[lives.buffer] == DEVICE, problem.size[lives.buffer], 0)
    first = np.where(lives.writer_step < 0, 0, lives.start + 1)
    across = lives.stop > first
    result = np.zeros(2 * steps + 2, np.int64)
    result[0::2] = sum_over_intervals(first[across], lives.stop[across], size[across], steps + 1)
    result[1 : 2 * steps + 1 : 2] = sequence.step_bytes
    end = (problem.hold[lives.buffer] != TO_LAST_READ) & (lives.stop == steps)
    result[2 * steps :] = int(size[end & (lives.stop > lives.start)].sum())
    return result
