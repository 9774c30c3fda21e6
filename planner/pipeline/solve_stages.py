"""Stages of a solve: formulate, bound, search and place within its clock; elapsed times and progress events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from graph.cancellation import GRACE_CHECKS, Deadline, cancellation_scope, unless_cancelled
from graph.execution.node_count import NodeCount, counting
from graph.gc_pause import gc_paused
from graph.ir import Graph
from planner import warm
from planner.formulation.execution_check import ExecutionResult, RealizedPlan
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.proven_bound import with_lower_bound, with_multi_step_bound
from planner.lowering.lowered_graph import BodyAlternatives
from planner.pipeline import arena_repair
from planner.pipeline.bound_beside import BoundBeside, is_bounded_beside
from planner.pipeline.progress import Progress
from planner.pipeline.search_clock import SearchClock, set_seconds, tree_verify_seconds, verify_seconds
from planner.pipeline.search_watch import SearchWatch, with_room_for_gaps
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Order, Plan, Score
from planner.report.report import ReportData
from planner.request.plan_request import Request
from planner.search import first_plan, improvers, lexicographic
from planner.search.improver_beside import cores
from planner.search.unread_runs import without_unread_runs

#: Stages before the first plan.
STAGES_BEFORE_PLAN = frozenset({"read", "differentiate"})
#: Planner named in reports for an order that a bound found: it makes orders in the same way, of what is live at a step.
OF_BOUND = "moment"
#: Planners that run compiled kernels.
KERNEL_PLANNERS = frozenset(
    {"auto", "greedy", "blocks", "moment", "anneal", "search_order", "recurrent", "evict", "search_evictions"}
)
#: Largest share of the time for the bound before the search, and share kept for the bounds after addresses, without and
#: with bounds beside the search.
FIRST_BOUND_PART, LAST_BOUND_PART, BESIDE_BOUND_PART = 0.5, 0.15, 0.05
#: Seconds between progress events of nodes that run.
NODES_S = 0.2


class SolveStages:
    """Stages of one solve: formulate, bound, search and place, each timed, with progress events.

    Call it for the scope of a stage: `with stages("plan"): ...`.
    """

    def __init__(
        self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event, has_seeds: bool = False
    ):
        """With `has_seeds` there is a plan from the start, so early stages ignore `cancel`."""
        self.on_progress, self.cancel, self.has_seeds = on_progress, cancel, has_seeds
        self.started = time.monotonic()
        self.elapsed: dict[str, float] = {}  # stage -> seconds
        self.stopped_by_clock = False
        self.lowered_after = 0.0  # seconds from the begin of the solve until the graph was formulated
        self.formulated_in = 0.0  # seconds of that
        self.clock = SearchClock()
        self.notes: list[str] = []
        self.incumbents: list[Candidate] = []  # of the last search, within the budget, best first
        self.first_found: list[Candidate] = []  # the quick first plan of the last search of a large graph; at most one
        self.beside: BoundBeside | None = None  # bounds of the last search
        self.is_shortened = False  # whether the last search left time to the repair of the arena

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.emit(Progress(stage, time.monotonic() - self.started))
        with self.resumed(stage):
            yield

    @contextmanager
    def resumed(self, stage: str) -> Iterator[None]:
        """Scope of a stage, or of more of one, without a progress event."""
        begin = time.monotonic()
        cancel_event = self.cancel if stage in STAGES_BEFORE_PLAN and not self.has_seeds else None
        with cancellation_scope(cancel_event, GRACE_CHECKS), nullcontext() if stage == "execute" else gc_paused():
            yield
        self.elapsed[stage] = self.elapsed.get(stage, 0.0) + time.monotonic() - begin

    @contextmanager
    def executing(self) -> Iterator[None]:
        """Scope of the stage "execute", which emits the nodes that have run."""
        next_at = 0.0

        def emit_nodes(count: NodeCount) -> None:
            nonlocal next_at
            if (now := time.monotonic()) >= next_at:
                next_at = now + NODES_S
                self.emit(Progress("execute", now - self.started, nodes_run=count.ran, nodes=count.expected))

        with self("execute"), counting(emit_nodes) as count:
            yield
            if count.ran:
                self.emit(Progress("execute", time.monotonic() - self.started, nodes_run=count.ran, nodes=count.ran))

    def emit(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def emit_incumbent(self, extra: float | None, peak_bytes: int, bound: float | None = None) -> None:
        """Emit a better plan: its overhead, its counted peak, and the proven lower bound on the overhead.

        The overhead is None if the plan is over the budget: it is not comparable with those of plans within.
        """
        gap = None if bound is None or extra is None else extra - bound
        self.emit(Progress("plan", time.monotonic() - self.started, extra, peak_bytes, bound, gap))

    def emit_found(self, formulation: Formulation, _: Order, score: Score) -> None:
        """Emit a better order of a search for `formulation`."""
        missed = bool(formulation.goal.budget_bytes and score.bytes_over_budget)
        cost_bound = formulation.bound.single_run_cost if missed else formulation.bound.cost
        self.emit_incumbent(
            None if missed else formulation.overhead(score.cost),
            formulation.count.counted(score.peak_bytes),
            formulation.overhead(cost_bound) if formulation.baseline.schedule is None else None,
        )

    def formulate(self, source: Graph, request: Request, groups: tuple[BodyAlternatives, ...] = ()) -> Formulation:
        """Formulate a graph. Raises CancellationError if `cancel` is set first, unless there are seeds.

        The kernels of the search are loaded here, or compiled on first use, before any of its time has passed.
        """
        began = time.monotonic()
        formulation = formulate(source, request, groups, None if self.has_seeds else self.cancel)
        formulated = time.monotonic()
        self.lowered_after, self.formulated_in = formulated - self.started, formulated - began
        if request.planner in KERNEL_PLANNERS and formulation.lowered.problem.tasks > improvers.TINY_TASKS:
            warm.ready(lambda: self.emit(Progress("compile", time.monotonic() - self.started)))
        return formulation

    def start_clock(self, formulation: Formulation, sections_part: float = 0.0) -> None:
        """Start the time of the search, which covers all from the first bound to the last address.

        `sections_part` is that of `sections.slow_sections_part`.
        """
        if formulation.goal.iterations is None:
            self.clock.start(formulation, self.lowered_after, sections_part * self.formulated_in)

    def with_share(self, formulation: Formulation, share: float) -> Formulation:
        """The formulation with a share of the search time, whose clock then ends sooner."""
        if formulation.goal.iterations is not None:
            return formulation
        self.clock.shorten(share)
        return replace(formulation, goal=replace(formulation.goal, seconds=self.clock.seconds))

    def bounded(self, formulation: Formulation) -> Formulation:
        """Add the quick lower bound, or return the formulation unchanged once `cancel` is set or its time is over."""
        stop = self._stop_of_bound(formulation, self.clock.until - (1 - FIRST_BOUND_PART) * formulation.goal.seconds)
        return unless_cancelled(stop, partial(with_lower_bound, quick=True), formulation)

    def with_tight_bound(self, formulation: Formulation, plan: Plan, until: float | None = None) -> Formulation:
        """Add the multi-step lower bound where `plan` leaves a gap, as far as time and `cancel` allow.

        `until` (on the monotonic clock) is by default the end of the search time.
        """
        if self.beside is not None and not plan.score.bytes_over_budget:
            beside, self.beside = self.beside, None
            return beside.tightened(formulation, plan)
        self.end_bound_beside()
        until = self.clock.until if until is None else until
        if not plan.score.bytes_over_budget:
            of_tree = tree_verify_seconds(formulation, LAST_BOUND_PART * formulation.goal.seconds)
            until -= max(of_tree, set_seconds(formulation)[1])
        stop = self._stop_of_bound(formulation, until)
        return unless_cancelled(stop, partial(with_multi_step_bound, plan=plan), formulation)

    def end_bound_beside(self) -> None:
        """End the bounds of the last search, if they still run."""
        beside, self.beside = self.beside, None
        if beside is not None:
            beside.end()

    def _stop_of_bound(self, formulation: Formulation, until: float) -> Deadline:
        """Set once `cancel` is, or when only the time to verify the bound is left."""
        return Deadline(self.cancel, until - verify_seconds(formulation))

    def _last_bound_part(self, formulation: Formulation) -> float:
        """Share of the time kept for bounds after addresses; none if that is too short to verify one."""
        seconds = formulation.goal.seconds
        if not formulation.goal.budget_bytes or not seconds:
            return 0.0
        is_beside = is_bounded_beside(formulation)
        part = BESIDE_BOUND_PART if is_beside else max(LAST_BOUND_PART, sum(set_seconds(formulation)) / seconds)
        return part if part * seconds > verify_seconds(formulation) else 0.0

    def for_search(self, formulation: Formulation, request: Request) -> Formulation:
        """The formulation with the time of the search: what is left, less that for arena repair and the last bounds."""
        goal = formulation.goal
        if goal.iterations is not None:
            return formulation
        kept = self._last_bound_part(formulation)
        if arena_repair.may_follow(formulation):
            kept += arena_repair.RESERVED_PART
        return replace(formulation, goal=replace(goal, seconds=self.clock.seconds_left(kept * goal.seconds)))

    def search(self, formulation: Formulation, planner: str, seeds: Sequence[Candidate] = ()) -> Plan:
        """Best plan found within the goal's time; no worse than any of the seeds."""
        self.clock.take_back()
        watch = self._watch(formulation, planner, seeds)
        searched, monitor = watch.searched, watch.monitor
        if formulation.goal.iterations is None:
            monitor.idle_cores = cores() - 1 - is_bounded_beside(formulation)
        if is_bounded_beside(formulation):
            self.beside = self._bound_beside(formulation, monitor, planner == "auto")
        watch.beside = self.beside
        if planner == "auto" and not seeds:
            first = first_plan.first_within(searched.lowered.problem, searched.goal, monitor)
            watch.first_found = self.first_found = [] if first is None else [first]
        try:
            known = [*seeds, *self.first_found]
            found = lexicographic.search(searched.lowered.problem, searched.goal, planner, monitor, known)
        finally:
            self.incumbents, self.is_shortened = watch.incumbents, watch.is_shortened
            if self.beside is not None:
                self.beside.end_if_proven()
        plan = formulation.plan_of(found)
        if self.beside is not None and (order := self.beside.findings.order) is not None:
            order = without_unread_runs(formulation.lowered.problem, formulation.goal, order)
            of_bound = formulation.plan_of(Candidate(order, OF_BOUND))
            is_better = of_bound.score < plan.score
            if is_better:
                plan = of_bound
                watch.report(plan.order, plan.score)
            # Its addresses may fit where those of the other do not.
            self.incumbents.insert(0 if is_better else 1, of_bound.candidate)
        self.stopped_by_clock = monitor.stopped_by_clock
        if planner != "auto":  # `auto` runs all planners; notes of one that does not apply are noise
            self.notes = monitor.notes
        return plan

    def _watch(self, formulation: Formulation, planner: str, seeds: Sequence[Candidate]) -> SearchWatch:
        """Watch of a new search, in bytes of the arena and with room for gaps; nothing is found yet."""
        self.incumbents, self.is_shortened, self.first_found = [], False, []
        rounded = formulation.in_arena_bytes()
        searched = with_room_for_gaps(rounded, seeds)
        room = (rounded.goal.budget_bytes or 0) - (searched.goal.budget_bytes or 0)
        report = partial(self.emit_found, searched)
        return SearchWatch(formulation, searched, room, planner, self.clock, report, self.cancel)

    def _bound_beside(self, formulation: Formulation, monitor: Monitor, takes_orders: bool) -> BoundBeside:
        """Thread of bounds beside the search with `monitor`. `takes_orders`: it may find the plan."""
        # The verifier takes the rest: its time grows with the proof.
        stop = self._stop_of_bound(formulation, self.clock.until - BESIDE_BOUND_PART * formulation.goal.seconds)
        # Limits of bounds follow from the requested seconds, not from those that a busy machine has left.
        requested = replace(formulation, goal=replace(formulation.goal, seconds=self.clock.seconds))
        return BoundBeside(requested, stop, monitor.cost_bound, takes_orders)

    def placed(
        self,
        formulation: Formulation,
        plan: Plan,
        request: Request,
        seeds: Sequence[Candidate] = (),
        until: float | None = None,
    ) -> tuple[Plan, tuple[str, ...]]:
        """(plan with addresses, notes). Repairs an arena over the budget if the runtime uses the planned addresses.

        `seeds` may replace the plan if its addresses do not fit. `until` is by default the end of the search time, less
        that of the last bounds.
        """
        if until is None:
            # Where no walk follows, a first layout may take the time that was left to the report.
            is_large = formulation.lowered.problem.tasks > improvers.MAX_SLOW_TASKS
            whole = self.clock.until + (self.clock.left_outside if is_large else 0.0)
            until = whole - self._last_bound_part(formulation) * formulation.goal.seconds
        known = (*self.incumbents, *seeds, *self.first_found)
        if self.beside is not None:
            formulation = replace(formulation, bound=self.beside.bound)  # ends the repair where a plan is proven
        with nullcontext() if self.beside is None else self.beside.paused():
            repaired = arena_repair.repair_arena(
                formulation, plan, request.layout, request.planner, self.cancel, until, known, self.is_shortened
            )
        self.stopped_by_clock |= repaired.stopped_by_clock
        return repaired.plan, repaired.notes

    def report_data(
        self,
        realized: RealizedPlan,
        mirrored: Plan,
        executed: ExecutionResult,
        warnings: tuple[str, ...],
        request: Request,
    ) -> ReportData:
        """Data of the report about one realized plan, with elapsed times and stop reasons up to now."""
        return ReportData(
            realized.formulation,
            realized.plan,
            realized.runs,
            mirrored,
            executed,
            warnings,
            self.elapsed,
            self.stopped_by_clock,
            self.cancel.is_set(),
            request,
        )
