"""Checkmate's frontier form: stage k ends with the first run of the k-th task; its other runs are recomputations.

    stage        0    1    2     3              R[k, i]  the i-th task is recomputed in stage k > i
    runs         a    b    c   a? b? d          S[k, b]  buffer b is held from stage k - 1 into stage k

The rows are the paper's: the inputs of a run are held or computed in the stage (1b), a held buffer was held or
computed before (1c), and at every first run memory fits. The memory rows at recomputations, recursion (2) in the
paper, are added lazily where a solution violates them. Without them the form still bounds every order with these
first runs, for any order of the recomputations within a stage. The last stage has no first run; it reads the outputs.

Omitted without loss: recomputations in a stage that share no buffer with the first runs on either side of it, neither
directly nor through other recomputations. They can move to the next or the previous stage, whichever holds less.

Source: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.problem import HANDED_OUT, TO_LAST_READ, Problem
from planner.problem.liveness import phase_ends
from planner.problem.plan import Order
from planner.problem.recompute import can_recompute, last_recompute_step

#: In place of a column number: the constant 0, the constant 1.
FIXED_ZERO, FIXED_ONE = -1, -2
#: No limit on ticks; above the cost of any order.
MAX_TICKS = 1 << 62


@dataclass(eq=False, slots=True)
class LinearModel:
    """A 0/1 program under construction: columns with bounds and ticks, and rows Σ factor · column ≥ least."""

    low: list[int] = field(default_factory=list)
    high: list[int] = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    terms: list[tuple[list[int], Sequence[float]]] = field(default_factory=list)  # columns, factors
    least: list[float] = field(default_factory=list)

    def column(self, ticks: int = 0) -> int:
        """Add a 0/1 column; returns its number."""
        self.low.append(0)
        self.high.append(1)
        self.ticks.append(ticks)
        return len(self.low) - 1

    def add_row(self, terms: list[tuple[int, int]], least: int) -> None:
        """Add Σ factor · column ≥ `least` over (column, factor), with constants substituted; void rows are dropped."""
        least -= sum(factor for column, factor in terms if column == FIXED_ONE)
        kept = [(column, factor) for column, factor in terms if column >= 0]
        if least > sum(min(0, factor) for _, factor in kept):
            self.terms.append(([column for column, _ in kept], [factor for _, factor in kept]))
            self.least.append(least)


class CheckmateModel:
    """The form of a problem for one order of first runs and a budget; n tasks in that order, m buffers."""

    def __init__(self, problem: Problem, first_runs: Order, budget_bytes: int, most_ticks: int = MAX_TICKS):
        """Recomputations that cannot take less than `most_ticks` in total are left out."""
        self.problem, self.first_runs = problem, np.asarray(first_runs, np.int64)
        self.stages, self.max_ticks = len(first_runs) + 1, most_ticks
        self.size, self.room = problem.planned_size(), budget_bytes - problem.resident_bytes()
        self._tabulate()
        self._choose_repeats()
        self.repeats = int(self.allowed.sum())
        self.rows = LinearModel()

    def build(self, check: Callable[[], None] = lambda: None) -> LinearModel:
        """Columns and rows, a few for each of `repeats` and its reads; `add_repeat_memory` and others add rows later.

        `check` is called between rows and may raise to cancel.
        """
        self._number()
        self._constrain(check)
        return self.rows

    def _tabulate(self) -> None:
        """Fill the reads and writes of each position, as rows and as matrices."""
        problem, order, n, m = self.problem, self.first_runs, self.stages - 1, self.problem.buffers
        sized = self.size > 0
        self.reads = [[b for b in problem.reads[t].tolist() if sized[b]] for t in order]
        self.writes = [[b for b in problem.writes[t].tolist() if sized[b]] for t in order]
        made = np.zeros(m, bool)
        made[problem.writes.gather(order)] = True
        self.at_start = (problem.producer() < 0) & sized
        held = (problem.hold != TO_LAST_READ) & (made | self.at_start) & sized
        self.reads.append(np.flatnonzero(held).tolist())
        self.writes.append([])
        self.read_at, self.written_at = _matrix(self.reads, m), _matrix(self.writes, m)
        self.first_write = np.where(self.written_at.any(0), self.written_at.argmax(0), -1)
        self.writers = [np.flatnonzero(column).tolist() for column in self.written_at.T]
        self.readers = [np.flatnonzero(column).tolist() for column in self.read_at.T]
        own = [sum(int(self.size[b]) for b in [*r, *w]) for r, w in zip(self.reads, self.writes, strict=True)]
        self.own = np.array(own, np.int64) + np.append(problem.workspace[order], 0)
        self.ticks = np.append(problem.cost[order], 0).tolist()
        ends = phase_ends(problem, order) if n else np.zeros(3, np.int64)
        # The stage from which a buffer must be held.
        self.handed_from = np.full(m, self.stages + 1, np.int64)
        phase = np.where(self.at_start, 0, problem.phase[np.maximum(problem.producer(), 0)] if problem.tasks else 0)
        handed = held & (problem.hold == HANDED_OUT)
        self.handed_from[handed] = ends[phase[handed]]

    def _choose_repeats(self) -> None:
        """Fill `allowed`: bool[stages, n + 1], the recomputations that may pay; and `over_budget`: bool[stages]."""
        problem, order, n = self.problem, self.first_runs, self.stages - 1
        may = np.append(can_recompute(problem)[order], False) if n else np.zeros(1, bool)
        may &= np.array(self.ticks) < self.max_ticks
        self.recomputable = may
        until = np.append(np.minimum(last_recompute_step(problem, order)[order], n), 0) if n else np.zeros(1, np.int64)
        stage = np.arange(self.stages)[:, None]
        live = self.read_at | self.written_at  # live during the stage's first run in any case
        for i in range(n):
            live[i, [source for _, source in self._takers(i)]] = False
        self.allowed = may & (stage > np.arange(self.stages)) & (stage <= until)
        self.until = until
        while True:
            count = int(self.allowed.sum())
            self._measure()
            dropped = np.where(self.over_budget[:, None] & ~live, stage, self.stages)
            for b in np.flatnonzero(self.first_write >= 0).tolist():
                dropped[: self.first_write[b] + 1, b] = self.stages
            since = dropped.min(0, initial=self.stages)  # the first stage a buffer may be dropped in
            earliest = np.where(self.written_at, since, self.stages).min(1, initial=self.stages)
            self.allowed &= stage > earliest
            for k in range(self.stages):
                if self.allowed[k].any():
                    self.allowed[k] &= self._joined(k)
            if int(self.allowed.sum()) == count:
                break

    def _measure(self) -> None:
        """Fill `last_use`, `spans` and `over_budget` from the allowed recomputations."""
        runs = self.allowed | np.eye(self.stages, dtype=bool)
        self.used = (runs.astype(np.float32) @ self.read_at.astype(np.float32)) > 0  # bool[stages, m]
        self.made = (runs.astype(np.float32) @ self.written_at.astype(np.float32)) > 0
        stage = np.arange(self.stages)[:, None]
        self.last_use = np.where(self.used, stage, -1).max(0, initial=-1)
        from_start = np.where(self.at_start, 0, self.stages)
        begin = np.where(self.first_write >= 0, self.first_write, from_start)
        self.spans = (stage >= begin) & (stage < self.last_use)  # held from stage k into k + 1, maybe
        also_held = self.spans & ~(self.read_at | self.written_at)
        self.over_budget = self.own + also_held @ self.size > self.room

    def _joined(self, stage: int) -> np.ndarray:
        """bool[n + 1]: recomputations that droppable buffers connect to the first run of this stage or the last one.

        A connection runs through other recomputations; all on the path together take less than `max_ticks`.
        """
        allowed, ticks = self.allowed[stage], self.ticks
        spent = {i: ticks[i] for i in np.flatnonzero(allowed & (self.until == stage)).tolist()}
        queue = [*((0, first) for first in (stage - 1, stage) if first >= 0), *((t, i) for i, t in spent.items())]
        heapq.heapify(queue)
        seen: set[int] = set()
        while queue:
            taken, i = heapq.heappop(queue)
            for b in (*self.reads[i], *self.writes[i]):
                if b in seen or (self.first_write[b] < 0 and self.read_at[-1, b]):  # held from the start to the end
                    continue
                seen.add(b)
                for j in (*self.readers[b], *self.writers[b]):
                    if allowed[j] and taken + ticks[j] < min(self.max_ticks, spent.get(j, self.max_ticks)):
                        spent[j] = taken + ticks[j]
                        heapq.heappush(queue, (spent[j], j))
        joined = np.zeros(self.stages, bool)
        joined[list(spent)] = True
        return joined

    def _number(self) -> None:
        """Create the columns: R for `allowed`, one S per run of stages that neither use nor write a buffer."""
        self.repeat = np.full((self.stages, self.stages), FIXED_ZERO, np.int64)
        for k, i in zip(*np.nonzero(self.allowed), strict=True):
            self.repeat[k, i] = self.rows.column(self.ticks[i])
        self.keep = np.full((self.stages + 1, self.problem.buffers), FIXED_ZERO, np.int64)  # S; row 0: from the start
        for b in np.flatnonzero(self.spans.any(0)).tolist():
            remade = np.asarray(self.allowed[:, self.writers[b]].any(1))
            column = FIXED_ZERO
            for k in np.flatnonzero(self.spans[:, b]).tolist():
                if column < 0 or self.used[k, b] or self.made[k, b]:
                    column = FIXED_ONE if self._must_stay(b, k, remade) else self.rows.column()
                self.keep[k + 1, b] = column
        self.keep[0, self.at_start & (self.last_use >= 0)] = FIXED_ONE

    def _must_stay(self, buffer: int, stage: int, remade: np.ndarray) -> bool:
        """Whether the buffer is handed out, or not recomputed before the next first run that reads it."""
        if stage + 1 >= self.handed_from[buffer]:
            return True
        later = np.flatnonzero(self.read_at[stage + 1 :, buffer])
        return bool(len(later)) and not remade[stage + 1 : stage + 2 + later[0]].any()

    def _constrain(self, check: Callable[[], None]) -> None:
        """Add the rows that hold for every order with these first runs."""
        allowed, keep, repeat = self.allowed, self.keep, self.repeat
        for k in range(self.stages):
            check()
            # (1b) inputs of a run are held into the stage or computed in it
            for j in [*np.flatnonzero(allowed[k]).tolist(), k]:
                for b in self.reads[j]:
                    makers = [(int(repeat[k, w]), 1) for w in self.writers[b] if allowed[k, w] and w != j]
                    self.rows.add_row([(self._kept(k, b), 1), *makers, (self._run(k, j), -1)], 0)
            # (1c) a buffer held beyond the stage was held into it or computed in it
            for b in np.flatnonzero(keep[k + 1] != FIXED_ZERO).tolist():
                if keep[k + 1, b] != keep[k, b] and not (k < self.stages - 1 and self.written_at[k, b]):
                    makers = [(int(repeat[k, w]), 1) for w in self.writers[b] if allowed[k, w]]
                    self.rows.add_row([(int(keep[k + 1, b]), -1), (self._kept(k, b), 1), *makers], 0)
            # (1d) at the first run of the stage, its inputs, its outputs and the buffers held beyond it fit
            if self.over_budget[k]:
                also_held = np.flatnonzero((keep[k + 1] != FIXED_ZERO) & ~self.read_at[k] & ~self.written_at[k])
                terms = [(int(keep[k + 1, b]), -int(self.size[b])) for b in also_held]
                self.rows.add_row([*terms, *self._credits(k, k)], int(self.own[k]) - self.room)

    def _kept(self, stage: int, buffer: int) -> int:
        return int(self.keep[stage, buffer])

    def _run(self, stage: int, position: int) -> int:
        return FIXED_ONE if stage == position else int(self.repeat[stage, position])

    def _credits(self, stage: int, position: int) -> list[tuple[int, int]]:
        """(column, bytes) for each takeover of a run; the column is 1 if the output reuses the input's storage."""
        pairs = self._takers(position)
        columns = {pair: self.rows.column() for pair in pairs}
        for end in (0, 1):
            for b in {pair[end] for pair in pairs}:
                of = [columns[pair] for pair in pairs if pair[end] == b]
                if len(of) > 1:
                    self.rows.add_row([(column, -1) for column in of], -1)
        for (_, source), column in columns.items():
            for need in self._needed_behind(stage, position, source):
                self.rows.add_row([(column, -1), *[(c, -f) for c, f in need]], -1)
            if stage != position:
                self.rows.add_row([(column, -1), (self._run(stage, position), 1)], 0)
        return [(column, int(self.size[out])) for (out, _), column in columns.items()]

    def _takers(self, position: int) -> list[tuple[int, int]]:
        """(output, input) pairs of a task where the output may reuse the input's storage."""
        size, space, problem = self.size, self.problem.space, self.problem
        return [
            (out, source)
            for out in self.writes[position]
            for source in problem.takeover[out].tolist()
            if source in self.reads[position] and size[source] >= size[out] and space[source] == space[out]
        ]

    def _needed_behind(self, stage: int, position: int, buffer: int) -> list[list[tuple[int, int]]]:
        """Sums of columns; one of them reaches 1 only if the buffer's copy is read after that position of the stage."""
        if buffer in self.writes[position]:
            return []
        later = [w for w in self.writers[buffer] if w > position and self.allowed[stage, w]]
        reads = [(self._run(stage, j), j) for j in self._readers_behind(stage, position, buffer)]
        if stage == self.stages - 1 or not self.written_at[stage, buffer] or position == stage:
            reads.insert(0, (int(self.keep[stage + 1, buffer]), self.stages))
        return [
            [(column, 1), *((int(self.repeat[stage, w]), -1) for w in later if w < until)]
            for column, until in reads
            if column != FIXED_ZERO
        ]

    def _readers_behind(self, stage: int, position: int, buffer: int) -> list[int]:
        """Positions after `position` at which the stage may read the buffer."""
        later = [j for j in self.readers[buffer] if position < j <= stage]
        return [j for j in later if j == stage or self.allowed[stage, j]]

    def add_repeat_memory(self, stage: int, position: int) -> None:
        """Add the memory row at one recomputation, if it runs: (2) of the paper, for one position."""
        terms = [(self._run(stage, position), -int(self.own[position])), *self._credits(stage, position)]
        for b in np.flatnonzero(self.size > 0).tolist():
            if self.read_at[position, b] or self.written_at[position, b]:
                continue
            before = [w for w in self.writers[b] if w < position and self.allowed[stage, w]]
            needs = self._needed_behind(stage, position, b)
            if needs and (self.keep[stage, b] != FIXED_ZERO or before):
                live = self.rows.column()
                for need in needs:
                    self.rows.add_row([(live, 1), *[(column, -factor) for column, factor in need]], 0)
                terms.append((live, -int(self.size[b])))
        self.rows.add_row(terms, -self.room)

    def add_no_takeover_memory(self, stage: int) -> None:
        """Add the memory row of a first run without any takeover."""
        also_held = np.flatnonzero(
            (self.keep[stage + 1] != FIXED_ZERO) & ~self.read_at[stage] & ~self.written_at[stage]
        )
        terms = [(self._kept(stage + 1, b), -int(self.size[b])) for b in also_held.tolist()]
        self.rows.add_row(terms, int(self.own[stage]) - self.room)

    def sequence(self, values: np.ndarray) -> tuple[Order, list[tuple[int, int]]]:
        """The order that the columns describe, and (stage, position) of each of its steps."""
        places = []
        for k in range(self.stages):
            places += [(k, int(i)) for i in np.flatnonzero(self.allowed[k]) if values[self.repeat[k, i]] > 0.5]
            places.append((k, k))
        places = places[:-1]
        return self.first_runs[[i for _, i in places]] if places else self.first_runs, places


def _matrix(rows: list[list[int]], columns: int) -> np.ndarray:
    """bool[rows, columns]: whether the row lists the column."""
    result = np.zeros((len(rows), columns), bool)
    for i, row in enumerate(rows):
        result[i, row] = True
    return result
