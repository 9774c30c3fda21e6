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
from planner.problem import DEVICE, RESIDENT, TO_LAST_READ, Csr
from planner.problem.columns import sum_over_intervals
from planner.problem.jit import Row

#: Maximum bits of a part, maximum buffers that lead into the next block, and resolution of peaks.
MAX_BITS, LEADS, PEAKS = 62, 5, 48


class SubproblemArrays(NamedTuple):
    """A part of n tasks, m buffers and r reads as the kernels read it. Lists or int64 arrays throughout."""

    cost: Row  # n
    workspace: Row  # n
    read_pointer: Row  # n + 1
    read_index: Row  # r
    write_pointer: Row  # n + 1
    write_index: Row
    size: Row  # m  0 for what is resident
    producer: Row  # m  -1: none
    bit: Row  # m  -1: always kept
    lead_in: Row  # m  number among the buffers that lead from the previous block into this one, -1 none
    lead_out: Row  # m  number among the buffers that lead from here into the next block, -1 none
    take_pointer: Row  # m + 1  buffer -> buffers whose storage it may take
    take_index: Row
    there: Row  # m  scratch
    stack: Row  # n + r  scratch
    flips: Row  # bits that may change
    turn: Row  # task TURN, bytes of a step of peaks


@dataclass(frozen=True, eq=False, slots=True)
class Subproblem:
    """Blocks begin .. end - 1 as arrays, and the mapping of their tasks to those of the problem."""

    begin: int
    end: int
    sheet: SubproblemArrays
    task: np.ndarray  # int64[n]  -1 for OUT, TURN and END
    step_bytes: np.ndarray  # int64[n]  of each task without recomputation
    base: int  # bits of the buffers that the backward part reads
    kept: int  # `base` without the buffers that successive blocks recompute

    @property
    def turn(self) -> int:
        return int(self.sheet.turn[0])


def subproblem_of(blocks: Blocks, begin: int, end: int, as_lists: bool) -> Subproblem:
    """The blocks begin .. end - 1 as one part. O(tasks + reads) of the part."""
    frame, problem, last = blocks.frame, blocks.frame.problem, len(blocks)
    out, back = (int(blocks.out[begin]), int(blocks.out[end])), (int(blocks.back[end]), int(blocks.back[begin]))
    steps = np.concatenate([np.arange(*out), np.arange(*back)])
    tasks, count = frame.order[steps], out[1] - out[0]
    turn, n = count + 1, len(steps) + 3
    local = np.concatenate([np.arange(count), turn + 1 + np.arange(len(steps) - count)])
    reader, read = problem.reads.entries(tasks)
    writer, written = problem.writes.entries(tasks)
    buffer, place = np.unique(np.concatenate([written, read]), return_inverse=True)
    written, read = place[: len(written)], place[len(written) :]
    made, resident = frame.made[buffer], problem.hold[buffer] == RESIDENT
    own = (made >= out[0]) & (made < out[1])
    ends = (blocks.out[end], blocks.out[min(end + 1, last)], back[0], back[1])
    on, far, between, behind = (
        use & ~resident for use in outside_reads(frame, buffer, *(np.full(len(buffer), e) for e in ends))
    )
    plain = problem.hold[buffer] == TO_LAST_READ
    leads = _numbered(own & on & ~far & ~between & plain)
    stays = between | (far & own) | (on & own & (leads < 0))
    again = frame.again[tasks] & (frame.latest[tasks] >= back[1])
    producer = np.full(len(buffer), -1, np.int64)
    producer[written] = local[writer]
    may = np.append(again, False)[np.where(own & (producer >= 0) & (producer < count), producer, -1)]
    size = np.where(resident | (problem.space[buffer] != DEVICE), 0, problem.size[buffer])
    droppable = np.flatnonzero(own & plain & may & ~stays & (size > 0))
    droppable = droppable[np.argsort(-size[droppable], kind="stable")][:MAX_BITS]
    bit = np.full(len(buffer), -1, np.int64)
    bit[droppable] = np.arange(len(droppable))
    inner = own & (frame.last_forward_read[buffer] >= _end_of_block(blocks, made)) & ~on & (bit >= 0)
    inner &= np.full(len(buffer), end - begin > 1)
    came = np.zeros(len(buffer), bool)
    if begin:
        came = (made >= blocks.out[begin - 1]) & (made < out[0]) & plain
        came &= (frame.last_forward_read[buffer] < blocks.out[begin + 1]) & (
            frame.first_backward_read[buffer] >= blocks.back[begin]
        )
    incoming = ~own & (made >= out[1]) & (made < back[0]) & ~resident
    rows = [
        (local[reader], read),
        *(
            (np.full(int(use.sum()), t), np.flatnonzero(use))
            for t, use in ((count, on & (made < out[1])), (turn, stays & (made < out[1])), (n - 1, behind))
        ),
    ]
    reads = Csr.of_pairs(n, np.concatenate([r for r, _ in rows]), np.concatenate([c for _, c in rows]))
    entering = np.flatnonzero(incoming)
    writes = Csr.of_pairs(n, np.append(local[writer], np.full(len(entering), turn)), np.append(written, entering))
    crosses = (frame.first_backward_read[buffer] < len(frame.order)) & (bit >= 0)
    base, kept = (sum(1 << int(i) for i in bit[chosen]) for chosen in (crosses, crosses & ~inner))

    def column(values: np.ndarray) -> list[int]:
        array = np.array(values, np.int64)
        return array.tolist() if as_lists else array  # type: ignore[return-value]

    def of_tasks(values: np.ndarray, others: tuple[int, int, int]) -> np.ndarray:
        result = np.zeros(n, np.int64)
        result[local], result[[count, turn, n - 1]] = values, others
        return result

    of, wanted = problem.takeover.entries(buffer)
    at = np.minimum(np.searchsorted(buffer, wanted), max(0, len(buffer) - 1))
    fits = (buffer[at] == wanted) & plain[at] & (size[at] >= size[of]) & (size[of] > 0) if len(of) else of == 0
    takeover = Csr.of_pairs(len(buffer), of[fits], at[fits])
    quantum = max(1, int(size.sum()) // PEAKS)
    sheet = SubproblemArrays(
        column(of_tasks(problem.cost[tasks], (0, 0, 0))),
        column(of_tasks(problem.workspace[tasks], (0, 0, 0))),
        column(reads.pointer),
        column(reads.index),
        column(writes.pointer),
        column(writes.index),
        column(size),
        column(producer),
        column(bit),
        column(_numbered(came)),
        column(leads),
        column(takeover.pointer),
        column(takeover.index),
        column(np.zeros(len(buffer))),
        column(np.zeros(n + len(reads.index))),
        column(np.sort(bit[(bit >= 0) & ~inner])),
        column(np.array([turn, quantum])),
    )
    step_bytes = _step_bytes(reads, writes, size, np.asarray(sheet.workspace), takeover)
    return Subproblem(begin, end, sheet, of_tasks(tasks, (-1, -1, -1)), step_bytes, base, kept)


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
    """int64: the first few of the chosen numbered from 0, all others -1."""
    result = np.full(len(chosen), -1, np.int64)
    some = np.flatnonzero(chosen)[:LEADS]
    result[some] = np.arange(len(some))
    return result


def _end_of_block(blocks: Blocks, step: np.ndarray) -> np.ndarray:
    """Step before which the block of each forward step ends."""
    return blocks.out[np.minimum(np.searchsorted(blocks.out, step, side="right"), len(blocks))]
