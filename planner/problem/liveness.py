"""Liveness: lifetimes, bytes per step, peak and cost of an order of tasks.

A read binds to the latest earlier write of its buffer. A buffer's bytes are held from that write
to its last read before the next write. Bytes of a step: all live instances, the inputs, all
outputs and the workspace, less each output that reuses an input's storage (takeover).
"""

from __future__ import annotations

import numpy as np

from planner.errors import IllegalPlan
from planner.problem import liveness_kernels
from planner.problem.columns import DEVICE, HANDED_OUT, RESIDENT, TO_THE_END, Csr, Problem, sum_over_intervals
from planner.problem.plan import Lifetimes, Order, Score

# One buffer b, written at steps 1 and 6, read at 2, 4 and 7:
#   step      0   1   2   3   4   5   6   7   8
#   instance      ├───────────┤       ├───┤         start 1, stop 5    start 6, stop 8


def lifetimes(problem: Problem, order: Order) -> Lifetimes:
    """Instances of all buffers under `order`. O(k log k) time for k reads and writes.

    Raises IllegalPlan if a read has no earlier write; all other rules are checked by `planner.verify`.
    """
    result, key, held = bound_instances(problem, order)
    _take_over(problem, result, key, held)
    return result


def bound_instances(problem: Problem, order: Order) -> tuple[Lifetimes, np.ndarray, np.ndarray]:
    """(instances without takeovers, sorted keys buffer * (steps + 1) + writer_step + 1, bool[k] held to the end).

    Raises IllegalPlan if a read has no earlier write.
    """
    order = np.asarray(order, np.int64)
    steps = len(order)
    write_step, written = problem.writes.entries(order)
    read_step, read = problem.reads.entries(order)

    # Instances by (buffer, step): the initial one first, then one per write.
    initial = np.flatnonzero((problem.producer() < 0) | (problem.hold == RESIDENT))
    buffer = np.concatenate([initial, written])
    writer_step = np.concatenate([np.full(len(initial), -1, np.int64), write_step])
    key = buffer * (steps + 1) + writer_step + 1
    by_key = np.argsort(key, kind="stable")
    place = np.empty(len(by_key), np.int64)
    place[by_key] = np.arange(len(by_key))
    buffer, writer_step, key = buffer[by_key], writer_step[by_key], key[by_key]

    # A read at step s sees writes at steps < s, which have keys below (buffer, s + 1).
    bound = np.searchsorted(key, read * (steps + 1) + read_step + 1) - 1
    missing = (bound < 0) | (buffer[np.maximum(bound, 0)] != read) if len(key) else np.ones(len(read), bool)
    if missing.any():
        at = int(np.flatnonzero(missing)[0])
        raise IllegalPlan(
            f"step {read_step[at]}: task {order[read_step[at]]} reads buffer {read[at]}, which does not exist "
            f"yet; run task {problem.producer()[read[at]]} first"
        )

    start = np.maximum(writer_step, 0)
    stop = start + (writer_step >= 0)  # an unread output is counted in its own step
    np.maximum.at(stop, bound, read_step + 1)
    held = _hold(problem, order, buffer, writer_step, start, stop)
    result = Lifetimes(
        buffer,
        writer_step,
        start,
        stop,
        np.full(len(buffer), -1, np.int64),
        Csr(_row_pointer(read_step, steps), bound),
        Csr(_row_pointer(write_step, steps), place[len(initial) :]),
    )
    return result, key, held


def _hold(
    problem: Problem, order: Order, buffer: np.ndarray, writer_step: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> np.ndarray:
    """Extend lifetimes by `Problem.hold`; bool[k]: held to the end. Instances are sorted by (buffer, step)."""
    hold = problem.hold[buffer]
    held = np.zeros(len(buffer), bool)
    held[_last_of_each(buffer, np.flatnonzero(hold == TO_THE_END))] = True
    handed = np.flatnonzero(hold == HANDED_OUT)
    if len(handed):
        # The instance handed out is the newest one at the end of the producer's phase.
        producer = problem.producer()[buffer[handed]]
        phase = np.where(producer < 0, 0, problem.phase[np.maximum(producer, 0)])
        present = handed[writer_step[handed] < phase_ends(problem, order)[phase]]
        held[_last_of_each(buffer, present)] = True
    stop[held] = len(order)
    # A resident storage exists from the start and is counted once, however often it is written.
    resident = hold == RESIDENT
    start[resident] = 0
    stop[resident] = np.where(writer_step[resident] < 0, len(order), 0)
    return np.asarray(held | resident)


def _last_of_each(buffer: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The last row of each buffer; `rows` ascending."""
    if not len(rows):
        return rows
    return np.asarray(rows[np.append(buffer[rows[1:]] != buffer[rows[:-1]], True)])


def profile(problem: Problem, order: Order, live_ranges: Lifetimes | None = None, space: int = DEVICE) -> np.ndarray:
    """int64[steps]: bytes of each step in one memory space."""
    live_ranges = lifetimes(problem, order) if live_ranges is None else live_ranges
    steps = len(order)
    size = np.where(problem.space[live_ranges.buffer] == space, problem.size[live_ranges.buffer], 0)
    size = np.where(live_ranges.stop > live_ranges.start, size, 0)
    start, stop = np.minimum(live_ranges.start, steps), np.maximum(live_ranges.stop, live_ranges.start)
    live = sum_over_intervals(start, stop, size, steps)
    if space == DEVICE:
        live = live + problem.workspace[order]
    taken = live_ranges.taken_from >= 0
    np.subtract.at(live, live_ranges.start[taken], size[taken])
    return np.asarray(live)


def peak(problem: Problem, order: Order) -> int:
    """Largest bytes of a step; the resident bytes if there is no step."""
    resident = problem.resident_bytes()
    if len(order) == 0:
        return resident
    if liveness_kernels.KERNELS.is_compiled() and not (problem.hold == HANDED_OUT).any():
        has_writer = np.zeros(problem.buffers, bool)
        has_writer[problem.writes.index] = True
        highest = liveness_kernels.KERNELS.compiled()["peak_step_bytes"](
            np.ascontiguousarray(order, np.int64),
            problem.reads.pointer,
            problem.reads.index,
            problem.writes.pointer,
            problem.writes.index,
            problem.takeover.pointer,
            problem.takeover.index,
            problem.size,
            problem.space,
            has_writer,
            problem.hold == RESIDENT,
            problem.workspace,
            (problem.hold == TO_THE_END).astype(np.int64),
            np.full(problem.buffers, -1, np.int64),
        )
        if highest != liveness_kernels.UNDEFINED_PEAK:
            return int(highest) + resident
    return int(profile(problem, order).max())


def cost(problem: Problem, order: Order) -> int:
    """Total ticks of the order on one engine."""
    return int(problem.cost[order].sum())


def score(problem: Problem, order: Order, budget_bytes: int) -> Score:
    """Score of an order under a budget."""
    highest = peak(problem, order)
    return Score(max(0, highest - budget_bytes), cost(problem, order), highest)


def phase_ends(problem: Problem, order: Order) -> np.ndarray:
    """int64[3]: the step after the last first run of each phase; 0 for an empty phase. Copies belong to no phase."""
    _, first = np.unique(order, return_index=True)
    first = first[~problem.is_copy()[order[first]]]
    ends = np.zeros(3, np.int64)
    np.maximum.at(ends, problem.phase[order[first]], first + 1)
    return ends


def _take_over(problem: Problem, live_ranges: Lifetimes, key: np.ndarray, held: np.ndarray) -> None:
    """Fill `taken_from`: each output reuses the first listed input that fits and dies here, each input once."""
    if not len(problem.takeover.index):
        return
    steps = len(live_ranges.written_instance)
    taker = live_ranges.written_instance.index  # in the order they are written
    taker = taker[problem.hold[live_ranges.buffer[taker]] != RESIDENT]
    position, wanted = problem.takeover.entries(live_ranges.buffer[taker])
    taker = taker[position]
    step, size = live_ranges.start[taker], problem.size[live_ranges.buffer[taker]]
    # The instance of `wanted` that is current at this step. If it ends with the step and the step does not
    # write it, the step's task reads it.
    source = np.searchsorted(key, wanted * (steps + 1) + step + 1) - 1
    fits = (
        (source >= 0)
        & (live_ranges.buffer[source] == wanted)
        & (live_ranges.stop[source] == step + 1)
        & ~held[source]
        & (problem.size[wanted] >= size)
        & (size > 0)
        & (problem.space[wanted] == problem.space[live_ranges.buffer[taker]])
    )
    taker, source = taker[fits], source[fits]
    wanted_by = np.bincount(source, minlength=1)
    if not len(source) or wanted_by.max() <= 1:  # no competition: the first listed wins
        live_ranges.taken_from[taker[::-1]] = source[::-1]
        return
    taken: set[int] = set()
    for k, i in zip(taker.tolist(), source.tolist(), strict=True):
        if live_ranges.taken_from[k] < 0 and i not in taken:
            taken.add(i)
            live_ranges.taken_from[k] = i


def _row_pointer(row: np.ndarray, rows: int) -> np.ndarray:
    """Pointer of a Csr whose entries are in ascending rows."""
    pointer = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=pointer[1:])
    return pointer
