"""Run the base order within a memory limit, and evict buffers by price where a task does not fit.

    for each task: run what its missing inputs need, in the base order; before each run, evict until its bytes fit

The buffer to evict has the least price t / (w · d): t the ticks of its producer and of the producers of that one's
missing inputs, w the weight of its next use, its bytes for a start, d a weight of the steps to that use. Buffers that
nothing reads any more are evicted first. This is the heuristic of DTR (Kirisame et al., "Dynamic Tensor
Rematerialization", ICLR 2021, section 4) with the steps to the next use in place of the time since the last one: of
equal blocks that all can be loaded, the one used last is the best to evict (Belady, "A study of replacement algorithms
for a virtual-storage computer", IBM Systems Journal 5, 1966).

Recomputations that the budget does not need are removed after a run. Each eviction looks at all live buffers. Ticks
that were counted before an input was evicted are too few by now: they are counted again only where they would be the
least price (as in Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", 1978).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from planner.algorithms.eviction.kernels import COUNTERS, KERNELS, LOOKED, MAX_LOOKED, Columns, RunState
from planner.algorithms.eviction.recompute_limits import recompute_limits
from planner.algorithms.greedy.gap_closing import GapCloser, without_unread_repeats
from planner.algorithms.greedy.gaps import EvaluatedOrder
from planner.problem import Problem
from planner.problem.columns import Csr
from planner.problem.jit import Row
from planner.problem.monitor import Monitor, flagged_when_cancelled
from planner.problem.plan import Order

#: A run of the base order has at most so many runs per task: more is thrashing.
MAX_RUNS = 6
#: A run of the base order looks at so many reads, writes and buffers, and at more for each task. The most take a fifth
#: of a second.
LOOKED_AT_LEAST, LOOKED_PER_TASK, LOOKED_AT_MOST = 2_000_000, 2_000, 20_000_000


class Weights(NamedTuple):
    """How the price of a buffer counts its ticks, its next use and the steps to that."""

    by_root: bool  # the square root of the ticks counts
    uses: np.ndarray  # float64[u]  of each entry of `use_index`
    steps: np.ndarray  # float64[s + 1]  of so many steps


class EvictionRuns:
    """Runs of one base order, which has every task once."""

    def __init__(self, problem: Problem, base: Order, monitor: Monitor):
        self.problem, self.base, self.monitor = problem, base, monitor
        self.closing = GapCloser(problem, monitor.should_stop, monitor.check)
        self.fast = self.closing.fast or KERNELS.is_compiled()
        self.columns = _columns_of(problem, base, self._column)
        self.buffer_of_use = np.repeat(np.arange(problem.buffers), np.diff(self.columns.use_pointer))
        self.max_looked = min(LOOKED_AT_LEAST + LOOKED_PER_TASK * problem.tasks, LOOKED_AT_MOST)
        self.looked = self.ended_at_limit = 0  # entries that all runs have looked at, and runs that looked at too many

    def run(self, room: int, weights: Weights) -> Order | None:
        """The runs within `room` bytes; None if a task does not fit, or at a limit. Raises SearchCancelled."""
        self.monitor.check()
        kernels, state = KERNELS.compiled() if self.fast else KERNELS.interpreted(), self._begin()
        of_uses, of_steps = (each if self.fast else each.tolist() for each in (weights.uses, weights.steps))
        limit = room - self.problem.resident_bytes()
        # A cancel sets the limit of what a run may look at to 1.
        with flagged_when_cancelled(self.problem.tasks, state.counters, MAX_LOOKED, self.monitor.check):
            count = kernels["run_base_order"](self.columns, state, limit, of_uses, of_steps, weights.by_root)
        self.monitor.check()
        self.looked += int(state.counters[LOOKED])
        self.ended_at_limit += int(state.counters[LOOKED]) > self.max_looked
        return None if count < 0 else np.asarray(state.order[:count], np.int64)

    def evaluated(self, order: Order) -> EvaluatedOrder:
        """The runs without those that nothing reads."""
        return without_unread_repeats(self.problem, order)

    def trimmed(self, found: EvaluatedOrder, budget: int) -> Order:
        """The order without recomputations that the budget, or its own peak if that is above, does not need."""
        return self.closing.trim_repeats(found, max(budget, found.peak)).order

    def _begin(self) -> RunState:
        """The state before a run."""
        tasks, buffers, steps = self.problem.tasks, self.problem.buffers, len(self.base)

        def zeros(count: int, dtype: type = np.int64) -> Any:
            return np.zeros(count, dtype) if self.fast else np.zeros(count, dtype).tolist()

        counters = zeros(COUNTERS)
        counters[MAX_LOOKED] = self.max_looked
        return RunState(
            order=zeros(MAX_RUNS * steps),
            counters=counters,
            live=zeros(buffers),
            members=zeros(buffers),
            place=zeros(buffers),
            next_use=self._column(np.array(self.columns.use_pointer[:-1], np.int64)),
            stale=zeros(buffers),
            ticks=zeros(buffers, float),
            waiting=zeros(buffers),
            ran=zeros(tasks),
            marked=zeros(tasks),
            met=zeros(buffers),
            pinned=zeros(buffers),
            taken=zeros(buffers),
            wanted=zeros(steps),
            pending=zeros(buffers),
            stack=zeros(tasks + buffers),
        )

    def _column(self, values: np.ndarray) -> Row:
        """A column: a list where kernels are interpreted."""
        return np.array(values) if self.fast else values.tolist()


def _columns_of(problem: Problem, base: Order, column: Callable[[np.ndarray], Row]) -> Columns:
    """What all runs of the base order read."""
    size, producer, steps = problem.planned_size(), problem.producer(), len(base)
    evictable, until = recompute_limits(problem, base)
    reads, writes, takeover = (_with_bytes(rows, size) for rows in (problem.reads, problem.writes, problem.takeover))
    used_at, used = reads.entries(base)
    uses, readers = Csr.of_pairs(problem.buffers, used, used_at), reads.transposed(problem.buffers)
    dropped = np.flatnonzero(~evictable & (size > 0) & (until >= 0) & (until < steps))
    ends = Csr.of_pairs(steps, until[dropped], dropped)
    step_of = np.zeros(problem.tasks, np.int64)
    step_of[base] = np.arange(steps)
    return Columns(
        cost=column(problem.cost),
        workspace=column(problem.workspace),
        read_pointer=column(reads.pointer),
        read_index=column(reads.index),
        write_pointer=column(writes.pointer),
        write_index=column(writes.index),
        step_of=column(step_of),
        size=column(size),
        producer=column(producer),
        evictable=column(evictable.astype(np.int64)),
        until=column(until),
        take_pointer=column(takeover.pointer),
        take_index=column(takeover.index),
        reader_pointer=column(readers.pointer),
        reader_index=column(readers.index),
        use_pointer=column(uses.pointer),
        use_index=column(uses.index),
        first=column(np.flatnonzero((producer < 0) & (size > 0) & (until >= 0))),
        base=column(np.asarray(base, np.int64)),
        end_pointer=column(ends.pointer),
        end_index=column(ends.index),
    )


def _with_bytes(rows: Csr, size: np.ndarray) -> Csr:
    """The rows without buffers that hold no bytes."""
    has_bytes = size[rows.index] > 0
    return Csr.of_pairs(len(rows), rows.row_of_entry()[has_bytes], rows.index[has_bytes])
