"""One block, or several successive ones, as a small problem for the kernels of `kernels.py`.

    forward   a b c │ OUT   TURN │ C B A │ END       OUT reads the outputs used by later blocks; TURN stands for all
                                                     that runs in between: its bytes are the saved bytes, and it writes
                                                     the incoming gradients; END reads the buffers used afterwards

A buffer of the forward part that no task outside reads in the backward pass has a bit: 1 keeps it across TURN, 0
recomputes it before it is read. Between successive blocks of one part, the connecting buffers are recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.algorithms.blocks.detection import Blocks, outside_reads
from planner.problem import RESIDENT, TO_LAST_READ, Csr
from planner.problem.columns import sum_over_intervals
from planner.problem.jit import Row

#: Maximum bits of a part and leads from a block into the next; peaks are compared in this many units.
MAX_BITS, MAX_LEADS, PEAK_UNITS = 62, 5, 48


class SubproblemArrays(NamedTuple):
    """A part of n tasks, m buffers and r reads as the kernels read it. Lists or int64 arrays throughout."""

    cost: Row  # n
    workspace: Row  # n
    read_pointer: Row  # n + 1
    read_index: Row  # r
    write_pointer: Row  # n + 1
    write_index: Row
    size: Row  # m  0 for residents
    producer: Row  # m  -1: none
    bit: Row  # m  -1: always kept
    lead_in: Row  # m  number among the leads from the previous block into this one, -1 none
    lead_out: Row  # m  number among the leads from here into the next block, -1 none
    take_pointer: Row  # m + 1  buffer -> buffers whose storage it may take
    take_index: Row
    available: Row  # m  scratch
    stack: Row  # n + r  scratch
    flips: Row  # bits that may change
    turn: Row  # task TURN, bytes of a unit of peaks
    stop: Row  # 1 once the search is cancelled


@dataclass(frozen=True, eq=False, slots=True)
class Subproblem:
    """Blocks begin .. end - 1 as arrays, and the mapping of their tasks to those of the problem."""

    begin: int
    end: int
    arrays: SubproblemArrays
    task: np.ndarray  # int64[n]  -1 for OUT, TURN and END
    step_bytes: np.ndarray  # int64[n]  of each task without recomputation
    read_backward: int  # bits of the buffers that the backward part reads
    kept: int  # `read_backward` without the buffers that successive blocks recompute

    @property
    def turn(self) -> int:
        return int(self.arrays.turn[0])


def subproblem_of(blocks: Blocks, begin: int, end: int, as_lists: bool) -> Subproblem:
    """The blocks begin .. end - 1 as one part. O(tasks + reads) of the part."""
    part = _Part(blocks, begin, end)
    reads, writes, takeover = part.reads(), part.writes(), part.takeover()
    bit, size = part.bit, part.size
    problem, at = blocks.base.problem, part.task_of_step
    workspace = part.of_tasks(problem.workspace[at])

    def column(values: np.ndarray) -> list[int]:
        array = np.array(values, np.int64)
        return array.tolist() if as_lists else array  # type: ignore[return-value]

    arrays = SubproblemArrays(
        column(part.of_tasks(problem.cost[at])),
        column(workspace),
        column(reads.pointer),
        column(reads.index),
        column(writes.pointer),
        column(writes.index),
        column(size),
        column(part.producer),
        column(bit),
        column(part.leads_in()),
        column(part.leads),
        column(takeover.pointer),
        column(takeover.index),
        column(np.zeros(len(size))),
        column(np.zeros(part.tasks + len(reads.index))),
        column(np.sort(bit[(bit >= 0) & ~part.inner])),
        column(np.array([part.turn, max(1, int(size.sum()) // PEAK_UNITS)])),
        column(np.zeros(1)),
    )
    crosses = (part.first_backward_read < len(blocks.base.order)) & (bit >= 0)
    read_backward, kept = (sum(1 << int(i) for i in bit[chosen]) for chosen in (crosses, crosses & ~part.inner))
    step_bytes = _step_bytes(reads, writes, size, workspace, takeover)
    return Subproblem(begin, end, arrays, part.of_tasks(at, -1), step_bytes, read_backward, kept)


class _Part:
    """Blocks begin .. end - 1: local numbers of their tasks and buffers, and how other blocks use the buffers."""

    def __init__(self, blocks: Blocks, begin: int, end: int):
        self.blocks, self.begin, self.end = blocks, begin, end
        base, problem = blocks.base, blocks.base.problem
        self.out = int(blocks.out[begin]), int(blocks.out[end])
        self.back = int(blocks.back[end]), int(blocks.back[begin])
        steps = np.concatenate([np.arange(*self.out), np.arange(*self.back)])
        forward = self.out[1] - self.out[0]
        self.task_of_step, self.out_task, self.turn = base.order[steps], forward, forward + 1
        self.tasks = len(steps) + 3
        self.local = np.concatenate([np.arange(forward), self.turn + 1 + np.arange(len(steps) - forward)])
        reader, read = problem.reads.entries(self.task_of_step)
        writer, written = problem.writes.entries(self.task_of_step)
        self.buffer, number = np.unique(np.concatenate([written, read]), return_inverse=True)
        self.writer, self.written = self.local[writer], number[: len(written)]
        self.reader, self.read = self.local[reader], number[len(written) :]
        self.producer = np.full(len(self.buffer), -1, np.int64)
        self.producer[self.written] = self.writer
        self.produced, self.size = base.produced[self.buffer], problem.planned_size()[self.buffer]
        self.resident = problem.hold[self.buffer] == RESIDENT
        self.to_last_read = problem.hold[self.buffer] == TO_LAST_READ
        self.last_forward_read = base.last_forward_read[self.buffer]
        self.first_backward_read = base.first_backward_read[self.buffer]
        self.own = (self.produced >= self.out[0]) & (self.produced < self.out[1])
        self._mark_outside_reads()
        self.bit = self._bits()
        # Written by one of successive blocks and read by another, so recomputed between them.
        self.inner = self.own & (self.last_forward_read >= _end_of_block(blocks, self.produced))
        self.inner &= ~self.read_later & (self.bit >= 0) & (end - begin > 1)

    def _mark_outside_reads(self) -> None:
        """Fill `read_later`, `stays` (bool[m]), `leads` (int64[m], -1: no lead) and `read_after`."""
        blocks, buffer = self.blocks, self.buffer
        next_end = blocks.out[min(self.end + 1, len(blocks))]
        later, far, between, after = (
            use & ~self.resident for use in outside_reads(blocks.base, buffer, self.out[1], next_end, *self.back)
        )
        self.read_later, self.read_after = later, after
        self.leads = _numbered(self.own & later & ~far & ~between & self.to_last_read)
        self.stays = between | (far & self.own) | (later & self.own & (self.leads < 0))

    def _bits(self) -> np.ndarray:
        """int64[m]: the bit of each buffer that may be dropped, largest first; -1: always kept."""
        base, tasks = self.blocks.base, self.task_of_step
        recomputable = base.recomputable[tasks] & (base.latest[tasks] >= self.back[1])
        forward = self.own & (self.producer >= 0) & (self.producer < self.out_task)
        may = np.append(recomputable, False)[np.where(forward, self.producer, -1)]
        droppable = np.flatnonzero(self.own & self.to_last_read & may & ~self.stays & (self.size > 0))
        droppable = droppable[np.argsort(-self.size[droppable], kind="stable")][:MAX_BITS]
        bit = np.full(len(self.buffer), -1, np.int64)
        bit[droppable] = np.arange(len(droppable))
        return bit

    def leads_in(self) -> np.ndarray:
        """int64[m]: number among the leads from the previous block, -1: no lead."""
        if not self.begin:
            return np.full(len(self.buffer), -1, np.int64)
        out, back = self.blocks.out, self.blocks.back[self.begin]
        before = (self.produced >= out[self.begin - 1]) & (self.produced < self.out[0]) & self.to_last_read
        near = (self.last_forward_read < out[self.begin + 1]) & (self.first_backward_read >= back)
        return _numbered(before & near)

    def reads(self) -> Csr:
        """Task -> buffers it reads. OUT reads what later blocks read, TURN what stays, END what is read afterwards."""
        early = self.produced < self.out[1]
        rows = [
            (self.reader, self.read),
            *(
                (np.full(int(use.sum()), t), np.flatnonzero(use))
                for t, use in (
                    (self.out_task, self.read_later & early),
                    (self.turn, self.stays & early),
                    (self.tasks - 1, self.read_after),
                )
            ),
        ]
        return Csr.of_pairs(self.tasks, np.concatenate([r for r, _ in rows]), np.concatenate([c for _, c in rows]))

    def writes(self) -> Csr:
        """Task -> buffers it writes; TURN writes the incoming gradients."""
        between = ~self.own & (self.produced >= self.out[1]) & (self.produced < self.back[0])
        incoming = np.flatnonzero(between & ~self.resident)
        task = np.append(self.writer, np.full(len(incoming), self.turn))
        return Csr.of_pairs(self.tasks, task, np.append(self.written, incoming))

    def takeover(self) -> Csr:
        """Buffer -> buffers of the part whose storage it may take."""
        buffer, size = self.buffer, self.size
        of, wanted = self.blocks.base.problem.takeover.entries(buffer)
        if not len(of):
            return Csr.empty(len(buffer))
        at = np.minimum(np.searchsorted(buffer, wanted), max(0, len(buffer) - 1))
        fits = (buffer[at] == wanted) & self.to_last_read[at] & (size[at] >= size[of]) & (size[of] > 0)
        return Csr.of_pairs(len(buffer), of[fits], at[fits])

    def of_tasks(self, values: np.ndarray, other: int = 0) -> np.ndarray:
        """int64[n]: the values of the tasks, and `other` for OUT, TURN and END."""
        result = np.full(self.tasks, other, np.int64)
        result[self.local] = values
        return result


def _step_bytes(reads: Csr, writes: Csr, size: np.ndarray, workspace: np.ndarray, takeover: Csr) -> np.ndarray:
    """int64[n]: bytes of each task if all run once, in order."""
    start, stop = np.zeros(len(size), np.int64), np.zeros(len(size), np.int64)
    start[writes.index] = stop[writes.index] = writes.row_of_entry()
    np.maximum.at(stop, reads.index, reads.row_of_entry())
    result = sum_over_intervals(start, stop + 1, size, len(workspace)) + workspace
    taken: set[int] = set()
    for b, c in zip(takeover.row_of_entry().tolist(), takeover.index.tolist(), strict=True):
        if stop[c] == start[b] and start[c] < start[b] and not {b, -1 - c} & taken:
            taken |= {b, -1 - c}
            result[start[b]] -= size[b]
    return np.asarray(result)


def _numbered(chosen: np.ndarray) -> np.ndarray:
    """int64[m]: the first MAX_LEADS chosen ones numbered from 0, all others -1."""
    result = np.full(len(chosen), -1, np.int64)
    some = np.flatnonzero(chosen)[:MAX_LEADS]
    result[some] = np.arange(len(some))
    return result


def _end_of_block(blocks: Blocks, step: np.ndarray) -> np.ndarray:
    """Step before which the block of each forward step ends."""
    return blocks.out[np.minimum(np.searchsorted(blocks.out, step, side="right"), len(blocks))]
