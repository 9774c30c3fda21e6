"""Timeline: an order under modification, with the bytes of each step kept up to date.

    slot       0   1   2   3   4   5   6   7        a run occupies a slot; empty slots leave room
    run            a       b   c           b        its task, in slot order
    buffer y               W───R           W───     uses of a buffer: one linked list in slot order

The bytes of an empty slot are those held across it, so they never exceed its neighbours'.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.algorithms.annealing import timeline_kernels as on
from planner.algorithms.annealing.timeline_kernels import AnnealingTimeline
from planner.problem import HANDED_OUT, RESIDENT, TO_LAST_READ, Csr, Problem
from planner.problem.liveness import phase_ends
from planner.problem.plan import Order
from planner.problem.recompute import can_recompute

#: Slots and runs for each run of the first sequence, and some more.
ROOM, SPARE = 3, 256
#: Changes between two commits.
LOG = 256


def timeline_of(problem: Problem, order: Order, limit: int, free: bool, strict: bool, seed: int) -> AnnealingTimeline:
    """An empty timeline for a legal order; no run is placed yet.

    `limit` is on the non-resident bytes. `free`: first runs may move, within their phase if `strict`. Not
    recomputed: tasks that write a buffer with several writers, overwrite an input, or hand out a buffer at the
    end of its phase.
    """
    count = problem.tasks + 2
    kept = problem.hold != RESIDENT
    reads, writes = _only(problem.reads, kept), _only(problem.writes, kept)
    takeover = _only(problem.takeover, kept)
    earlier, later = _first_runs(problem)
    writer, written = writes.row_of_entry(), writes.index
    shared = problem.has_several_writers()
    fixed = np.zeros(count, bool)
    fixed[problem.writes.row_of_entry()[shared[problem.writes.index]]] = True
    fixed[problem.tasks :] = True
    recomputable = np.append(can_recompute(problem), [False, False]) & ~fixed
    recomputable[writer[problem.hold[written] == HANDED_OUT]] = False
    movable = ~fixed & free
    movable[problem.after_every.index] = False
    tasks = np.full((count, on.TASK_COLUMNS), -1, np.int64)
    tasks[:, on.COST], tasks[:, on.WORKSPACE] = np.append(problem.cost, [0, 0]), np.append(problem.workspace, [0, 0])
    tasks[:, on.PHASE] = np.append(problem.phase if strict else problem.phase * 0, [0, 0])
    tasks[:, on.RECOMPUTABLE], tasks[:, on.MOVABLE], tasks[:, on.TAKES] = recomputable, movable, 0
    tasks[writer[np.diff(takeover.pointer)[written] > 0], on.TAKES] = 1
    tasks[:, on.DEGREE] = np.append(np.diff(reads.pointer) + np.diff(writes.pointer), [0, 0])
    rows = (reads, writes, problem.after_every, earlier, later)
    index = _laid_out(tasks[:, on.READ : on.ENTRIES_END + 1], rows)
    buffers = np.full((problem.buffers, on.BUFFER_COLUMNS), -1, np.int64)
    buffers[:, on.SIZE] = problem.planned_size()
    buffers[:, on.PRODUCER] = problem.producer()
    buffers[:, on.TAKE] = takeover.pointer[:-1] + len(index)
    buffers[:, on.TAKE_END] = takeover.pointer[1:] + len(index)
    at_start = np.flatnonzero(kept & (buffers[:, on.PRODUCER] < 0))
    # Optional tasks that do not run leave buffers without content.
    exists = (buffers[:, on.PRODUCER] < 0) | np.isin(buffers[:, on.PRODUCER], order)
    at_end = np.flatnonzero(kept & exists & (problem.hold != TO_LAST_READ))
    slots = ROOM * (len(order) + 2) + SPARE
    degree = tasks[:, on.DEGREE]
    uses = ROOM * int(degree[order].sum()) + len(at_start) + len(at_end) + SPARE * int(degree.max(initial=1))
    timeline = AnnealingTimeline(
        tasks,
        buffers,
        np.append(index, takeover.index),
        np.full((uses, on.USE_COLUMNS), -1, np.int64),
        np.full((slots - SPARE // 2, on.RUN_COLUMNS), -1, np.int64),
        np.full(slots, -1, np.int64),
        np.zeros(slots + 1, np.int64),
        np.zeros((int(np.diff(reads.pointer).max(initial=0)), 2), np.int64),
        np.zeros(3 * LOG, np.int64),
        np.zeros(on.COUNTERS, np.int64),
    )
    _place_end(timeline, on.START, at_start, reads=0, slot=-1)
    _place_end(timeline, on.END, at_end, reads=1, slot=slots)
    timeline.counters[[on.LIMIT, on.RUNS, on.RANDOM]] = limit, 2, seed % 2147483646 + 1
    timeline.counters[[on.BEST, on.ALLOWED]] = on.NO_BEST
    return timeline


def fenced_sequence(problem: Problem, order: Order, strict: bool) -> np.ndarray:
    """The order with a fence task (n, n + 1) after each of two phases; both at the end unless `strict`."""
    ends = phase_ends(problem, order) if strict else np.full(3, len(order))
    first, second = int(ends[0]), int(max(ends[0], ends[1]))
    return np.insert(order, [first, second], [problem.tasks, problem.tasks + 1])


def order_of(problem: Problem, timeline: AnnealingTimeline) -> Order:
    """The tasks in slot order."""
    tasks = timeline.runs[timeline.slot_run[timeline.slot_run >= 0], on.TASK]
    return np.asarray(tasks[tasks < problem.tasks])


def _first_runs(problem: Problem) -> tuple[Csr, Csr]:
    """(predecessors, successors) of each task by first runs.

    In addition, the first runs of tasks around the producer of a resident or shape-read buffer keep the order of
    the document.
    """
    producer = problem.producer()
    resident = problem.hold[problem.reads.index] == RESIDENT
    read = np.concatenate([problem.shape_reads.index, problem.reads.index[resident]])
    reader = np.concatenate([problem.shape_reads.row_of_entry(), problem.reads.row_of_entry()[resident]])
    written = (producer[read] >= 0) & (producer[read] != reader)
    sides = np.sort(np.stack([producer[read], reader])[:, written], axis=0)
    pairs = np.concatenate(
        [
            np.stack([problem.after_first.row_of_entry(), problem.after_first.index]),
            np.stack([problem.after_every.row_of_entry(), problem.after_every.index]),
            sides,
        ],
        axis=1,
    )
    return Csr.of_pairs(problem.tasks, pairs[1], pairs[0]), Csr.of_pairs(problem.tasks, pairs[0], pairs[1])


def _laid_out(begin: np.ndarray, tables: Sequence[Csr]) -> np.ndarray:
    """Rows of all tables, task by task, in one array; fills `begin` with their starts and the end of the last."""
    count = np.zeros((len(begin), len(tables)), np.int64)
    for k, table in enumerate(tables):
        count[: len(table), k] = np.diff(table.pointer)
    pointer = np.append(0, np.cumsum(count.ravel()))
    begin[:, :-1] = pointer[:-1].reshape(count.shape)
    begin[:, -1] = pointer[len(tables) :: len(tables)]
    index = np.zeros(int(pointer[-1]), np.int64)
    for k, table in enumerate(tables):
        row = table.row_of_entry()
        index[begin[row, k] + np.arange(len(row)) - table.pointer[row]] = table.index
    return index


def _place_end(timeline: AnnealingTimeline, run: int, buffers: np.ndarray, reads: int, slot: int) -> None:
    """Place START or END; its uses are not linked yet."""
    begin = int(timeline.counters[on.USES])
    uses = slice(begin, begin + len(buffers))
    timeline.uses[uses, on.BUFFER], timeline.uses[uses, on.READS], timeline.uses[uses, on.RUN] = buffers, reads, run
    timeline.runs[run, on.SLOT], timeline.runs[run, on.USE] = slot, begin
    timeline.counters[on.USES] += len(buffers)


def _only(rows: Csr, kept: np.ndarray) -> Csr:
    """The rows with only the kept entries."""
    chosen = kept[rows.index]
    return Csr.of_pairs(len(rows), rows.row_of_entry()[chosen], rows.index[chosen])
