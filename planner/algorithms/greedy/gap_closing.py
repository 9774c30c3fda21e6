"""One step of `greedy`: close gaps down to a limit, and remove recomputations that a limit does not need."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from planner.algorithms.greedy import gap_kernels, trim_kernels
from planner.algorithms.greedy.byte_ledger import highest
from planner.algorithms.greedy.gaps import CHAIN, EvaluatedOrder, GapTable, evaluate_order, gap_table_of
from planner.algorithms.greedy.use_list_kernels import STOP
from planner.problem import HANDED_OUT, TO_THE_END, Problem, liveness
from planner.problem.jit import Kernel, Kernels
from planner.problem.monitor import flagged_when_cancelled
from planner.problem.plan import Lifetimes, Order
from planner.problem.recompute import can_recompute, is_first_run

# Above this many tasks compiled kernels are worth numba's start-up time.
MAX_INTERPRETED = 300
# A gap whose price fell below this fraction of the next best is queued again.
SLACK = 0.95
# Rounds of pricing all gaps; closing a gap may make others profitable.
ROUNDS = 8
# Above this many tasks, recomputations are removed in one round: a second takes as long and finds next to none.
MAX_TRIMMED_AGAIN = 20_000


class GapCloser:
    """Gap closing for one problem; `fast`: with compiled kernels.

    `check` is called between the parts of a step and may raise to cancel; it counts no iteration.
    """

    def __init__(
        self,
        problem: Problem,
        should_stop: Callable[[], bool] = lambda: False,
        check: Callable[[], None] = lambda: None,
    ):
        self.problem, self.should_stop, self.check = problem, should_stop, check
        self.repeatable = can_recompute(problem)
        self.degree = np.diff(problem.reads.pointer) + np.diff(problem.writes.pointer)
        self.fast = self.uses_compiled()

    def uses_compiled(self) -> bool:
        """Whether compiled kernels pay off or are already loaded."""
        return self.problem.tasks > MAX_INTERPRETED or gap_kernels.KERNELS.is_compiled()

    def reduce_to(self, order: Order, limit: int) -> tuple[Order, int]:
        """(order, peak) with recomputations added so that the peak is within `limit`, or nearer to it."""
        closed = self.close_gaps(order, limit)
        self.check()
        lowest = self.trim_repeats(closed, max(limit, closed.peak))
        return lowest.order, lowest.peak

    def close_gaps(self, order: Order, limit: int) -> EvaluatedOrder:
        """The order with gaps closed where it exceeds `limit`, best price first."""
        kernels, margin = self._kernels(gap_kernels.KERNELS), CHAIN * int(self.degree.max(initial=0))
        room = 2 * int(self.degree[order].sum()) + margin
        evaluated = evaluate_order(self.problem, order)
        self.check()
        table, ledger = gap_table_of(self.problem, self.repeatable, evaluated, room, not self.fast, self.check)
        for _ in range(ROUNDS):
            self.check()
            uses = _with_gap(table)
            prices = np.zeros(len(uses))
            with self._watched(table):
                closed = kernels["close_best"](table, ledger, self._row(uses), prices, limit, SLACK, margin)
            if not closed:
                break
            if highest(ledger) <= limit or self.should_stop():
                break
        self.check()
        added = table.counters[1]
        at, task = np.asarray(table.added_at[:added], np.int64), np.asarray(table.added_task[:added], np.int64)
        by = np.lexsort((task, at))
        return without_unread_repeats(self.problem, np.insert(order, at[by], task[by]))

    def trim_repeats(self, sequence: EvaluatedOrder, limit: int) -> EvaluatedOrder:
        """The order without recomputations that the limit does not need, most expensive removed first."""
        while not self.should_stop():
            order = sequence.order
            steps = np.flatnonzero(~is_first_run(self.problem, order))
            steps = steps[np.lexsort((steps, -self.problem.cost[order[steps]]))]
            table, ledger = gap_table_of(self.problem, self.repeatable, sequence, 0, not self.fast, self.check)
            self.check()
            dropped = np.zeros(len(steps), np.int64)
            with self._watched(table):
                self._kernels(trim_kernels.KERNELS)["drop_runs"](
                    table, ledger, self._row(steps), self._row(order[steps]), limit, dropped
                )
            self.check()
            if not dropped.any():
                break
            shorter = without_unread_repeats(self.problem, np.delete(order, steps[dropped > 0]))
            if shorter.peak > limit:
                break
            sequence = shorter
            if self.problem.tasks > MAX_TRIMMED_AGAIN:
                break
        return sequence

    def _watched(self, table: GapTable) -> AbstractContextManager[None]:
        """Scope of a kernel on a table, which ends early once the search is cancelled, if the graph is large."""
        return flagged_when_cancelled(self.problem.tasks, table.counters, STOP, self.check)

    def _kernels(self, kernels: Kernels) -> dict[str, Kernel]:
        return kernels.compiled() if self.fast else kernels.interpreted()

    def _row(self, row: np.ndarray) -> np.ndarray | list[int]:
        return row if self.fast else row.tolist()


def _with_gap(table: GapTable) -> np.ndarray:
    """Uses that end a gap which may be closed."""
    uses = table.counters[0]
    place, before = np.asarray(table.place[:uses], np.int64), np.asarray(table.before[:uses], np.int64)
    return np.flatnonzero((np.asarray(table.free[:uses], np.int64) > 0) & (place // 2 * 2 > place[before] + 1))


def without_unread_repeats(problem: Problem, order: Order) -> EvaluatedOrder:
    """The order without recomputations whose outputs are never needed."""
    while True:
        lifetimes = liveness.lifetimes(problem, order)
        keep = needed_steps(problem, order, lifetimes)
        if keep.all():
            return evaluate_order(problem, order, lifetimes)
        order = order[keep]


def needed_steps(problem: Problem, order: Order, lifetimes: Lifetimes) -> np.ndarray:
    """bool[steps]: first runs, and recomputations whose results are read or needed at the end."""
    return np.asarray(is_first_run(problem, order) | read_steps(problem, order, lifetimes))


def read_steps(problem: Problem, order: Order, lifetimes: Lifetimes) -> np.ndarray:
    """bool[steps]: whether a later step reads a result of the step, or it is needed at the end."""
    hold, read = problem.hold[lifetimes.buffer], np.zeros(len(order), bool)
    needed = np.bincount(lifetimes.read_instance.index, minlength=len(hold)) > 0
    needed |= ((hold == TO_THE_END) | (hold == HANDED_OUT)) & (lifetimes.stop == len(order))
    written = lifetimes.written_instance
    read[written.row_of_entry()[needed[written.index]]] = True
    return read
