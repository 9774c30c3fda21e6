"""How far a solve has come, and its result: stages with their times, progress events, the outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from graph.cancellation import GRACE_CHECKS, cancellation_scope, unless_cancelled
from graph.gc_pause import gc_paused
from graph.ir import Graph
from planner.formulation.arena_repair import repair_arena
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation, with_lower_bound, with_multi_step_bound
from planner.formulation.metrics import overhead
from planner.lowering.lower import BodyAlternatives
from planner.problem.plan import Order, Plan, Score
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named
from planner.search import lexicographic, portfolio
from planner.search.portfolio import Candidate

#: Stages before there can be any plan.
STAGES_BEFORE_PLAN = frozenset({"read", "differentiate"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a solve has come, for whoever waits."""

    stage: str  # "read", "differentiate", "plan", "layout", "rewrite" or "execute"
    seconds: float
    incumbent_overhead: float | None = None
    incumbent_peak_bytes: int | None = None
    bound_overhead: float | None = None
    gap: float | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """What a solve gives back. `graph` is the rewritten graph, `source` what was planned."""

    report: dict[str, Any]
    source: Graph
    graph: Graph
    plan: Plan

    @property
    def exit_code(self) -> int:
        """0 done, 1 over budget, 3 stopped, 4 our own fault."""
        if self.report["executed"]["status"] == "different":
            return 4
        if self.report["plan"]["stopped"]:
            return 3
        return 1 if self.report["plan"]["status"] == "over_budget" else 0


class SolveStages:
    """Times the stages of one solve and passes progress on."""

    def __init__(self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event, is_kept: bool = False):
        """`is_kept`: there is a plan to keep before the first is found."""
        self.on_progress, self.cancel, self.has_seeds = on_progress, cancel, is_kept
        self.started = time.monotonic()
        self.started_at: dict[str, float] = {}  # per stage, of the monotonic clock
        self.elapsed: dict[str, float] = {}
        self.stopped_by_clock = False
        self.notes: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.tell(Progress(stage, time.monotonic() - self.started))
        begin = self.started_at[stage] = time.monotonic()
        heeded = self.cancel if stage in STAGES_BEFORE_PLAN and not self.has_seeds else None
        with cancellation_scope(heeded, GRACE_CHECKS), nullcontext() if stage == "execute" else gc_paused():
            yield
        self.elapsed[stage] = time.monotonic() - begin

    def tell(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def formulate(self, source: Graph, request: Request, groups: tuple[BodyAlternatives, ...] = ()) -> Formulation:
        """The question about a graph. Raises Stopped when that comes first and nothing is there to keep."""
        return formulate(source, request, groups, None if self.has_seeds else self.cancel)

    def bounded(self, question: Formulation) -> Formulation:
        """The question with its quick bound, or as it is once whoever waits wants to stop."""
        return unless_cancelled(self.cancel, partial(with_lower_bound, quick=True), question)

    def with_tight_bound(self, question: Formulation, plan: Plan) -> Formulation:
        """The question with the bound of several moments where the plan leaves a gap, or as it is, likewise."""
        return unless_cancelled(self.cancel, partial(with_multi_step_bound, plan=plan), question)

    def search(self, question: Formulation, planner: str, seeds: Sequence[Candidate] = ()) -> Plan:
        """The best plan the planner finds in the goal's time, no worse than any of the seeds."""

        def improved(_: Order, score: Score) -> None:
            extra = overhead(score.cost, question.baseline_cost)
            least = question.bound.single_run_cost if score.bytes_over_budget else question.bound.cost
            floor = overhead(least, question.baseline_cost)
            peak = question.count.counted(score.peak_bytes)
            self.tell(Progress("plan", time.monotonic() - self.started, extra, peak, floor, extra - floor))

        monitor = question.monitor(improved, self.cancel)
        found = lexicographic.search(question.lowered.problem, question.goal, planner, monitor, seeds)
        self.stopped_by_clock = monitor.stopped_by_clock
        if planner != "auto":  # there, one that cannot do anything is no news
            self.notes = monitor.notes
        return question.evaluated(found.order, found.planner, found.choices)

    def mirrored(self, question: Formulation) -> Plan:
        """The plan of MXNet's mirroring, for comparison."""
        found = portfolio.search(question.lowered.problem, question.goal, "mirror", question.monitor())
        return question.evaluated(found.order, "mirror")

    def placed(self, question: Formulation, plan: Plan, request: Request) -> tuple[Plan, tuple[str, ...]]:
        """(the plan with addresses, notes). Where the runtime places addresses, repaired until they fit the budget."""
        if not runtime_named(request.runtime).places:
            return question.placed(plan, request.layout, self.cancel), ()
        until = self.started_at["plan"] + request.search_seconds
        replan = partial(self._replan, request.planner)
        return repair_arena(question, plan, request.layout, replan, self.cancel, until)

    def _replan(self, planner: str, question: Formulation, seed: Candidate) -> Plan:
        """Re-plan from `seed` without reporting progress (arena repair)."""
        other = SolveStages(None, self.cancel)
        plan = other.search(question, planner, [seed])
        self.stopped_by_clock |= other.stopped_by_clock
        return plan
