"""Block detection in a training step: intervals of the forward pass with their part of the backward pass; equal blocks.

    forward    │ a b c d │ a b c d │ a b c d │ loss      tasks of equal colour at equal distance: a repeat of
    block      0         1         2         3           period 4, cut where the fewest bytes cross
    backward   D' D │ C' C │ B' B │ A' A                 block k's part ends with the last read of its outputs

Colours are refined from cost, workspace, sizes and holds along reads and writes, as in Weisfeiler and Leman, "The
reduction of a graph to canonical form", 1968. They are a heuristic: two blocks are of one kind if the bijection given
by their order maps every column, read, write and outside use of one to those of the other. O(n log n) time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.problem import RESIDENT, TO_LAST_READ, Csr, Problem, liveness
from planner.problem.columns import sum_over_intervals
from planner.problem.plan import Order
from planner.problem.recompute import backward_start, base_order, can_recompute, first_run_step, last_recompute_step

#: Forward tasks of a block: minimum, maximum unless it repeats, and target size where nothing repeats.
MIN_TASKS, MAX_TASKS, TARGET_TASKS = 10, 48, 16
#: Rounds of colour refinement, and maximum number of periods tried.
REFINEMENT_ROUNDS, MAX_PERIODS = 3, 12
#: A block shorter than this is merged with the one before it.
MIN_BLOCK_TASKS = 4

Steps = np.ndarray | int


@dataclass(frozen=True, eq=False, slots=True)
class BaseSchedule:
    """The base order with columns per buffer, in steps; -1: none."""

    problem: Problem
    order: Order
    turn: int  # step at which the backward pass begins
    recomputable: np.ndarray  # bool[n]  and the only writer of its outputs
    latest: np.ndarray  # int64[n]  step before which the last recomputation must be
    produced: np.ndarray  # int64[m]  step of the producer
    last_forward_read: np.ndarray  # int64[m]  last read in the forward pass
    first_backward_read: np.ndarray  # int64[m]  first read in the backward pass; the number of steps if none
    last_read: np.ndarray  # int64[m]  last read; the number of steps if held to the end
    step_bytes: np.ndarray  # int64[steps]

    @classmethod
    def of(cls, problem: Problem, strict_phases: bool) -> BaseSchedule:
        order = base_order(problem, strict_phases)
        turn, steps = backward_start(problem, order), len(order)
        first = np.append(first_run_step(problem, order), -1)
        produced = first[problem.producer()]
        produced[produced == steps] = -1
        step, read = problem.reads.entries(order)
        last_forward, last = np.full(problem.buffers, -1, np.int64), np.full(problem.buffers, -1, np.int64)
        first_backward = np.full(problem.buffers, steps, np.int64)
        is_backward = step >= turn
        np.maximum.at(last_forward, read[~is_backward], step[~is_backward])
        np.minimum.at(first_backward, read[is_backward], step[is_backward])
        np.maximum.at(last, read, step)
        last[(problem.hold != TO_LAST_READ) & (problem.hold != RESIDENT)] = steps
        recomputable = can_recompute(problem)
        recomputable[problem.writes.row_of_entry()[problem.has_several_writers()[problem.writes.index]]] = False
        return cls(
            problem,
            order,
            turn,
            recomputable,
            last_recompute_step(problem, order),
            produced,
            last_forward,
            first_backward,
            last,
            liveness.profile(problem, order),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Blocks:
    """k blocks: block i is the steps [out[i], out[i + 1]) and [back[i + 1], back[i]) of the base order."""

    base: BaseSchedule
    out: np.ndarray  # int64[k + 1]  ascending
    back: np.ndarray  # int64[k + 1]  descending to `turn`
    kind: np.ndarray  # int64[k]  blocks of one kind are isomorphic; the first of each kind in ascending order

    def __len__(self) -> int:
        return len(self.kind)

    def steps(self, block: int) -> np.ndarray:
        """Steps of one block; the i-th steps of blocks of one kind correspond."""
        return np.concatenate(
            [np.arange(self.out[block], self.out[block + 1]), np.arange(self.back[block + 1], self.back[block])]
        )


def blocks_of(problem: Problem, strict_phases: bool, check: Callable[[], None] = lambda: None) -> Blocks:
    """The blocks of the base order; a single one if the forward pass has no cut. O(n log n + reads).

    `check` is called on the way and may raise to cancel.
    """
    base = BaseSchedule.of(problem, strict_phases)
    check()
    out = np.append(_begins(base, check), base.turn)
    back = _backs(base, out)
    return Blocks(base, out, back, _kinds(base, out, back, check))


def refine_colours(problem: Problem, check: Callable[[], None] = lambda: None) -> np.ndarray:
    """int64[n]: tasks with equal neighbourhoods have equal colours; the numbers have no other meaning."""
    with np.errstate(over="ignore"):
        task = _mixed(problem.cost) + _ODD * _mixed(problem.workspace) + _mixed(_flags(problem))
        buffer = _mixed(problem.size) + _ODD * _mixed(problem.hold.astype(np.int64) * 2 + problem.space)
        readers, writers = problem.reads.transposed(problem.buffers), problem.writes.transposed(problem.buffers)
        for _ in range(REFINEMENT_ROUNDS):
            check()
            task, buffer = (
                _mixed(
                    task + _mixed(_sums(problem.reads, _mixed(buffer))) + _sums(problem.writes, _mixed(buffer + _ODD))
                ),
                _mixed(buffer + _mixed(_sums(readers, _mixed(task))) + _sums(writers, _mixed(task + _ODD))),
            )
    return np.asarray(np.unique(task, return_inverse=True)[1], np.int64)


def repeated_intervals(colour: np.ndarray, check: Callable[[], None] = lambda: None) -> list[tuple[int, int, int]]:
    """(begin, end, period) of disjoint intervals with at least two repeats, longest first.

    Within an interval every entry equals the entry a period later; of equally long intervals the shorter period wins.
    """
    found = []
    by = np.argsort(colour, kind="stable")
    distance = np.diff(by)[colour[by[1:]] == colour[by[:-1]]]
    period, count = np.unique(distance, return_counts=True)
    for p in period[np.argsort(-count, kind="stable")][:MAX_PERIODS].tolist():
        check()
        found += [(a, b + p, p) for a, b in _true_intervals(colour[:-p] == colour[p:]) if b - a >= p]
    taken, chosen = np.zeros(len(colour) + 2, bool), []
    for a, b, p in sorted(found, key=lambda run: (run[0] - run[1], run[2], run[0])):
        for x, y in _true_intervals(~taken[a:b]):
            if y - x >= 2 * max(p, MIN_TASKS):
                chosen.append((a + x, a + y, p))
                taken[a + x : a + y] = True
    return chosen


def _true_intervals(values: np.ndarray) -> list[tuple[int, int]]:
    """Half-open intervals of successive true values."""
    padded = np.concatenate([[False], values, [False]])
    begin, end = np.flatnonzero(~padded[:-1] & padded[1:]), np.flatnonzero(padded[:-1] & ~padded[1:])
    return list(zip(begin.tolist(), end.tolist(), strict=True))


def _begins(base: BaseSchedule, check: Callable[[], None]) -> np.ndarray:
    """Steps at which blocks begin, the first one 0."""
    crossing = _crossing(base)
    begins = [np.zeros(1, np.int64)]
    if not base.turn:
        return begins[0][:0]
    colour = refine_colours(base.problem, check)[base.order[: base.turn]]
    for a, b, period in repeated_intervals(colour, check):
        check()
        length = period * -(-MIN_TASKS // period)
        if b - a < 2 * length:
            continue
        cuts = [crossing[a + phase : b - 1 : length] for phase in range(length)]
        phase = min(range(length), key=lambda i: (int(cuts[i].max(initial=0)), i))
        begins.append(np.arange(a + phase + 1, b + 1, length))
    whole = np.unique(np.concatenate(begins))
    whole = whole[whole < base.turn]
    result = [0]
    for begin, end in zip(whole.tolist(), np.append(whole[1:], base.turn).tolist(), strict=True):
        if begin - result[-1] >= MIN_BLOCK_TASKS and (end - begin >= MIN_BLOCK_TASKS or end < base.turn):
            result.append(begin)
        if end - begin > MAX_TASKS:
            result += _narrow(crossing, begin, end)
    return np.array(result, np.int64)


def _narrow(crossing: np.ndarray, begin: int, end: int) -> list[int]:
    """Steps within [begin, end), about `TARGET_TASKS` apart, before which few bytes cross."""
    found, at = [], begin
    while end - at > 2 * TARGET_TASKS:
        window = crossing[at + TARGET_TASKS // 2 : at + TARGET_TASKS * 3 // 2]
        at += TARGET_TASKS // 2 + int(np.argmin(window)) + 1
        found.append(at)
    return found


def _crossing(base: BaseSchedule) -> np.ndarray:
    """int64[turn]: bytes written in the forward pass up to each step and read in it later."""
    problem, produced, last = base.problem, base.produced, base.last_forward_read
    moving = (produced >= 0) & (produced < last) & (problem.hold != RESIDENT)
    return sum_over_intervals(produced[moving], last[moving], problem.size[moving], base.turn)


def _backs(base: BaseSchedule, out: np.ndarray) -> np.ndarray:
    """Per block the step after the last read of buffers that it, or a later block, writes; `turn` for the end."""
    ends = np.full(base.turn + 1, base.turn, np.int64)
    forward = (base.produced >= 0) & (base.produced < base.turn) & (base.problem.hold != RESIDENT)
    forward &= base.last_read < len(base.order)
    np.maximum.at(ends, base.produced[forward], base.last_read[forward] + 1)
    return np.append(np.maximum.accumulate(ends[::-1])[::-1][out[:-1]], base.turn)


def _kinds(base: BaseSchedule, out: np.ndarray, back: np.ndarray, check: Callable[[], None]) -> np.ndarray:
    """Kind of each block, by all properties that the order-preserving bijection must map."""
    problem, count = base.problem, len(out) - 1
    steps = np.concatenate([np.arange(out[-1]), np.arange(base.turn, back[0])])
    # Backward steps ascend while their blocks descend.
    block = np.append(
        np.repeat(np.arange(count), np.diff(out)), np.repeat(np.arange(count)[::-1], -np.diff(back)[::-1])
    )
    by = np.argsort(block, kind="stable")
    steps, block = steps[by], block[by]
    begin = np.searchsorted(block, np.arange(count + 1))
    rank, block_of = np.full(len(base.order) + 1, -1, np.int64), np.full(len(base.order) + 1, -1, np.int64)
    rank[steps], block_of[steps] = np.arange(len(steps)) - begin[block], block
    tasks = base.order[steps]
    row_task = np.stack(
        [
            problem.cost[tasks],
            problem.workspace[tasks],
            base.recomputable[tasks],
            steps < base.turn,
            np.minimum(base.latest[tasks] - back[block], 0),
            np.diff(problem.reads.pointer)[tasks],
            np.diff(problem.writes.pointer)[tasks],
        ],
        axis=1,
    )
    slot, entries = np.zeros(problem.buffers, np.int64), np.arange(len(problem.writes.index))
    slot[problem.writes.index] = entries - problem.writes.pointer[problem.writes.row_of_entry()]
    keys = [[row_task[a:b].tobytes()] for a, b in itertools.pairwise(begin.tolist())]
    for rows in (problem.reads, problem.writes):
        check()
        position, buffer = rows.entries(tasks)
        of = block[position]
        resident = problem.hold[buffer] == RESIDENT
        produced = base.produced[buffer]
        known = (produced >= 0) & (block_of[produced] >= 0)
        uses = outside_reads(base, buffer, out[of + 1], out[np.minimum(of + 2, count)], back[of + 1], back[of])
        check()
        row = np.stack(
            [
                np.where(resident, 0, np.where(known, of - block_of[produced], buffer + count)),
                np.where(resident | ~known, -1, rank[produced]),
                slot[buffer] * ~resident,
                np.where(resident, 0, problem.size[buffer]),
                problem.hold[buffer],
                problem.space[buffer],
                *(use & ~resident for use in uses),
            ],
            axis=1,
        ).astype(np.int64)
        ends = np.searchsorted(of, np.arange(count + 1))
        for k in range(count):
            keys[k].append(row[ends[k] : ends[k + 1]].tobytes())
    number: dict[tuple[bytes, ...], int] = {}
    return np.array([number.setdefault(tuple(key), len(number)) for key in keys], np.int64)


def outside_reads(
    base: BaseSchedule, buffer: np.ndarray, end: Steps, next_end: Steps, back: Steps, back_end: Steps
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """bool[] each: read by later blocks, by non-adjacent ones, by their backward parts, and after the block.

    The block ends before step `end` of the forward pass, the next one before `next_end`; its backward part is [back,
    back_end). Steps are one for all buffers, or one for each.
    """
    return (
        base.last_forward_read[buffer] >= end,
        base.last_forward_read[buffer] >= next_end,
        base.first_backward_read[buffer] < back,
        base.last_read[buffer] >= back_end,
    )


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _flags(problem: Problem) -> np.ndarray:
    """int64[n]: phase, engine, repeat, recompute and optional, combined."""
    columns = (problem.phase, problem.engine, problem.repeat, problem.recompute, problem.optional)
    result = np.zeros(problem.tasks, np.int64)
    for column in columns:
        result = result * 4 + column
    return result


def _mixed(values: np.ndarray) -> np.ndarray:
    """uint64: the finaliser of SplitMix64 (Steele, Lea, Flood, 2014)."""
    x = np.asarray(values).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _sums(rows: Csr, values: np.ndarray) -> np.ndarray:
    """uint64: per row the sum of the values of its entries, modulo 2⁶⁴."""
    sums = np.append(np.uint64(0), np.cumsum(values[rows.index], dtype=np.uint64))
    return np.asarray(sums[rows.pointer[1:]] - sums[rows.pointer[:-1]])
