"""How far a solve has come, and its result: stages with their times, progress events, the outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from graph.cancellation import SPARE, heeding, unless_stopped
from graph.gc_pause import collector_paused
from graph.ir import Graph
from planner.formulation.arena_repair import fitted
from planner.formulation.formulate import question_of
from planner.formulation.formulation import Question, with_more_moments, with_time_bound
from planner.formulation.metrics import overhead
from planner.lowering.lower import Group
from planner.problem.plan import Order, Plan, Score
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named
from planner.search import lexicographic, portfolio
from planner.search.portfolio import Found

#: Stages before there can be any plan.
EMPTY = frozenset({"read", "differentiate"})


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


class Stages:
    """Times the stages of one solve and passes progress on."""

    def __init__(self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event, is_kept: bool = False):
        """`is_kept`: there is a plan to keep before the first is found."""
        self.on_progress, self.cancel, self.is_kept = on_progress, cancel, is_kept
        self.started = time.monotonic()
        self.began: dict[str, float] = {}  # per stage, of the monotonic clock
        self.elapsed: dict[str, float] = {}
        self.stopped_by_clock = False
        self.notes: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.tell(Progress(stage, time.monotonic() - self.started))
        begin = self.began[stage] = time.monotonic()
        heeded = self.cancel if stage in EMPTY and not self.is_kept else None
        with heeding(heeded, SPARE), nullcontext() if stage == "execute" else collector_paused():
            yield
        self.elapsed[stage] = time.monotonic() - begin

    def tell(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def posed(self, source: Graph, request: Request, groups: tuple[Group, ...] = ()) -> Question:
        """The question about a graph. Raises Stopped when that comes first and nothing is there to keep."""
        return question_of(source, request, groups, None if self.is_kept else self.cancel)

    def bounded(self, question: Question) -> Question:
        """The question with its quick bound, or as it is once whoever waits wants to stop."""
        return unless_stopped(self.cancel, partial(with_time_bound, quick=True), question)

    def tightened(self, question: Question, plan: Plan) -> Question:
        """The question with the bound of several moments where the plan leaves a gap, or as it is, likewise."""
        return unless_stopped(self.cancel, partial(with_more_moments, plan=plan), question)

    def search(self, question: Question, planner: str, seeds: Sequence[Found] = ()) -> Plan:
        """The best plan the planner finds in the goal's time, no worse than any of the seeds."""

        def improved(_: Order, score: Score) -> None:
            extra = overhead(score.cost, question.baseline_cost)
            least = question.bound.once_cost if score.bytes_over_budget else question.bound.cost
            floor = overhead(least, question.baseline_cost)
            peak = question.count.counted(score.peak_bytes)
            self.tell(Progress("plan", time.monotonic() - self.started, extra, peak, floor, extra - floor))

        monitor = question.monitor(improved, self.cancel)
        found = lexicographic.search(question.lowered.problem, question.goal, planner, monitor, seeds)
        self.stopped_by_clock = monitor.stopped_by_clock
        if planner != "auto":  # there, one that cannot do anything is no news
            self.notes = monitor.notes
        return question.judged(found.order, found.planner, found.choices)

    def mirrored(self, question: Question) -> Plan:
        """The plan of MXNet's mirroring, for comparison."""
        found = portfolio.search(question.lowered.problem, question.goal, "mirror", question.monitor())
        return question.judged(found.order, "mirror")

    def placed(self, question: Question, plan: Plan, request: Request) -> tuple[Plan, tuple[str, ...]]:
        """(the plan with addresses, notes). Where the runtime places addresses, repaired until they fit the budget."""
        if not runtime_named(request.runtime).places:
            return question.placed(plan, request.layout, self.cancel), ()
        until = self.began["plan"] + request.search_seconds
        replan = partial(self._replan, request.planner)
        return fitted(question, plan, request.layout, replan, self.cancel, until)

    def _replan(self, planner: str, question: Question, seed: Found) -> Plan:
        """Re-plan from `seed` without reporting progress (arena repair)."""
        other = Stages(None, self.cancel)
        plan = other.search(question, planner, [seed])
        self.stopped_by_clock |= other.stopped_by_clock
        return plan
