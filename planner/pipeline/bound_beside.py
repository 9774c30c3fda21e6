"""The lower bound that a thread tightens while a search runs, so that the search ends once its best plan is proven."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from graph.cancellation import CancellationError, Deadline, cancellation_scope
from planner.formulation.formulation import Formulation
from planner.formulation.proven_bound import certified, tightening_bounds
from planner.formulation.proven_bound.findings import Findings
from planner.problem.monitor import CostBound
from planner.problem.plan import Plan
from planner.search.improvers import TINY_TASKS
from planner.search.short_turns import SHORT_TURNS

#: Larger problems are bounded after the search: both are interpreted for long stretches there, and slow each other.
MAX_TASKS = 500


def is_bounded_beside(formulation: Formulation) -> bool:
    """Whether bounds run beside the search: by the clock, with a budget, for problems of medium size.

    Under an iteration limit they follow the search, because the end of a search must not depend on the clock.
    """
    goal, tasks = formulation.goal, formulation.lowered.problem.tasks
    return goal.iterations is None and bool(goal.budget_bytes) and TINY_TASKS < tasks <= MAX_TASKS


class BoundBeside:
    """Thread that tightens the bound of a formulation until `stop` is set, and raises `shared` as it does.

    With `takes_orders` it may find a plan too; the search ends once that is proven.
    """

    def __init__(self, formulation: Formulation, stop: Deadline, shared: CostBound, takes_orders: bool = False):
        self.bound, self.shared = formulation.bound, shared
        self._certified = formulation  # with the bound that the verifier accepts
        self.findings = Findings(takes_orders)
        self.least_cost = math.inf  # ticks of the best plan within the budget; set by the search
        self._ended, self._may_run = threading.Event(), threading.Event()
        self._may_run.set()
        self._stop = _Turn(stop, self._ended, self._may_run)
        self._thread = threading.Thread(target=self.run, args=(formulation,), name="remat-bound", daemon=True)
        self._thread.start()

    def run(self, formulation: Formulation) -> None:
        """What the thread does."""
        with cancellation_scope(self._stop), SHORT_TURNS:
            for bound in tightening_bounds(formulation, lambda: self.least_cost, self.findings):
                if bound.cost > self.bound.cost:
                    self.bound = bound
                    self.shared.ticks = max(self.shared.ticks, bound.cost)
                    try:
                        self._certified = certified(formulation, bound, self.findings.accepted)
                    except CancellationError:
                        return
                self.shared.is_met |= self.findings.cost <= self.bound.cost
                if self._stop.is_set():
                    return

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Scope in which the thread waits at its next check for cancellation, so that it holds no lock of others."""
        self._may_run.clear()
        try:
            yield
        finally:
            self._may_run.set()

    def end_if_proven(self) -> None:
        """End the thread if the best plan is proven; else it goes on after addresses are chosen."""
        if min(self.least_cost, self.findings.cost) <= self.bound.cost:
            self._ended.set()

    def end(self) -> None:
        """End the thread soon."""
        self._ended.set()

    def tightened(self, formulation: Formulation, plan: Plan) -> Formulation:
        """The formulation with the bound of the thread, once that has ended."""
        if plan.score.cost <= self.bound.cost:
            self._ended.set()
        self._thread.join()
        return replace(formulation, bound=self._certified.bound, warnings=self._certified.warnings)


class _Turn(Deadline):
    """Set once the deadline is or the thread has ended; a check waits until the thread may run."""

    def __init__(self, deadline: Deadline, ended: threading.Event, may_run: threading.Event):
        super().__init__(ended, math.inf)
        self._deadline, self._ended, self._may_run = deadline, ended, may_run

    def is_set(self) -> bool:
        self._may_run.wait(self._deadline.seconds_left())
        return self._ended.is_set() or self._deadline.is_set()

    def is_cancelled(self) -> bool:
        return self._deadline.is_cancelled()  # after the end, the last bound may be the proof of the plan

    def seconds_left(self) -> float:
        return self._deadline.seconds_left()
