"""What all attempts of arena repair share: the best plan so far, the time left, and addresses for a candidate."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.pipeline.arena_repair.shares import SHARES, Shares, has_time
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Plan
from planner.search import improvers

#: Shares of the goal's iterations for a packing and for a plan.
PACK_ITERATIONS, PLAN_ITERATIONS = 1 / 75, 0.125
#: With so many tasks, walks make few moves in the time.
LOWERED_TASKS = 4_000


def beats(plan: Plan, known: Plan | None) -> bool:
    """Whether a plan scores better than the one known, if there is one."""
    return known is None or plan.score < known.score


@dataclass(eq=False, slots=True)
class Attempts:
    """Attempts at a plan whose addresses fit: the best of them, and the limits of those that follow.

    `planner` re-plans; "auto" also walks on from plans. No search begins once `cancel` is set, or after `until`
    (seconds of the monotonic clock) unless the goal counts iterations.
    """

    formulation: Formulation
    planner: str
    cancel: threading.Event
    until: float
    best: Plan | None = None  # least time whose addresses fit
    closest: Plan | None = None  # by the clock: least bytes above the budget of those that did not become `best`
    stopped_by_clock: bool = False  # whether a clock ended a search
    shares: Shares = SHARES
    rounded: Formulation = field(init=False)  # in bytes of the arena
    raised: Formulation = field(init=False)  # with the budget rounded up too: what ends an arena need not be rounded

    def __post_init__(self) -> None:
        self.rounded = self.formulation.in_arena_bytes()
        goal = self.rounded.goal
        budget = -(-(goal.budget_bytes or 0) // ALIGNMENT) * ALIGNMENT
        self.raised = replace(self.rounded, goal=replace(goal, budget_bytes=budget))

    @property
    def budget(self) -> int:
        """The budget, in bytes of the arena."""
        return self.rounded.goal.budget_bytes or 0

    @property
    def tasks(self) -> int:
        """Tasks of the problem."""
        return self.formulation.lowered.problem.tasks

    @property
    def is_large(self) -> bool:
        """Whether annealing is skipped."""
        return self.tasks > improvers.MAX_SLOW_TASKS

    @property
    def walks_are_slow(self) -> bool:
        """Whether gaps are closed in the plan before walks, and no flat plans are searched."""
        return self.tasks >= LOWERED_TASKS

    @property
    def walks_by_clock(self) -> bool:
        """Whether walks from the plan take all the time left."""
        return self.planner == "auto" and self.formulation.goal.iterations is None and math.isfinite(self.until)

    def over(self, plan: Plan) -> int:
        """Bytes that a plan with addresses needs above the budget; 0 if it fits."""
        return self.formulation.bytes_over_budget(plan)

    def misses_budget(self, plan: Plan) -> bool:
        """Whether the peak of a plan exceeds the budget, with sizes as in the arena: no addresses help."""
        return bool(self.raised.plan_of(plan.candidate).score.bytes_over_budget)

    def wasted(self, plan: Plan) -> int:
        """Bytes of the budget that a lower peak has to leave free, if its arena exceeds it by the same share."""
        needed = self.budget + self.over(plan)
        peak = self.rounded.plan_of(plan.candidate).score.peak_bytes
        return self.budget - int(peak / max(1, needed) * self.budget)

    def is_better(self, plan: Plan) -> bool:
        """Whether a plan scores better than the best one."""
        return beats(plan, self.best)

    def is_over(self, first: Plan) -> bool:
        """Whether no search may follow, or none is likely to find a plan with less time than `best`.

        `first` is the plan that is repaired.
        """
        by_clock = self.formulation.goal.iterations is None
        enough = self.formulation.bound.cost if self.walks_by_clock else first.score.cost
        if self.best is not None and self.best.score.cost <= enough:
            return True
        return self.cancel.is_set() or (by_clock and time.monotonic() >= self.until)

    def seconds_left(self) -> float:
        """Seconds until `until`, at least 0."""
        return max(0.0, self.until - time.monotonic())

    @contextmanager
    def limited(self, *, shares: Shares | None = None, until: float | None = None) -> Iterator[None]:
        """Scope with other shares of the time or another end of it; both are as before after the scope."""
        outer = self.shares, self.until
        self.shares = self.shares if shares is None else shares
        self.until = self.until if until is None else until
        try:
            yield
        finally:
            self.shares, self.until = outer

    def monitor(self, formulation: Formulation, part: float, iterations: float) -> Monitor:
        """Monitor with a part of the time left, or of the goal's iterations."""
        monitor = formulation.monitor(cancel=self.cancel)
        if monitor.iterations is not None:
            monitor.iterations = max(1, int(monitor.iterations * iterations))
        else:
            monitor.seconds = min(monitor.seconds, self.seconds_left() * part)
        return monitor

    @contextmanager
    def monitored(self, formulation: Formulation, part: float, iterations: float) -> Iterator[Monitor]:
        """Scope with a monitor; `stopped_by_clock` is set after it if the clock ended a search.

        Threads may be in such scopes at once.
        """
        monitor = self.monitor(formulation, part, iterations)
        yield monitor
        if monitor.stopped_by_clock:
            self.stopped_by_clock = True

    def offer(self, plan: Plan, pack: bool = True) -> bool:
        """Whether the addresses of a placed plan fit, packed tighter if need be; a better one becomes `best`."""
        tried = self.tried(plan, pack)
        return not (self.over(tried) or tried.score.bytes_over_budget)

    def tried(self, plan: Plan, pack: bool = True) -> Plan:
        """A placed plan, packed tighter if need be; it becomes `best` if it is better and its addresses fit."""
        if pack and self.over(plan) and self.is_better(plan):
            plan = self.packed(plan)
        is_better = self.is_better(plan)
        if plan.score.bytes_over_budget:
            return plan
        if is_better and not self.over(plan):
            self.best = plan
        elif self.walks_by_clock and (self.closest is None or self.over(plan) < self.over(self.closest)):
            self.closest = plan
        return plan

    def packed(self, plan: Plan, only_within: bool = False) -> Plan:
        """As `Formulation.packed`, within a part of the time left; unchanged if that is too short."""
        with self.monitored(self.formulation, self.shares.pack, PACK_ITERATIONS) as monitor:
            return self.formulation.packed(plan, monitor, only_within) if has_time(monitor, plan) else plan

    def swept(self, candidate: Candidate, part: float | None = None) -> Plan:
        """The candidate as a plan with addresses by sweeps alone, within `part` of the time left.

        `part` is by default that of new orders.
        """
        part = self.shares.layout if part is None else part
        return self.with_sweeps(self.formulation.plan_of(candidate), part)

    def with_sweeps(self, plan: Plan, part: float) -> Plan:
        """The plan with addresses by sweeps alone, within a part of the time left."""
        with self.monitored(self.formulation, part, 1.0) as monitor:
            return self.formulation.swept(plan, monitor)
