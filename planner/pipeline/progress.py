"""Stages of a solve: progress events, elapsed time per stage, cancellation, and the outcome."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graph.cancellation import GRACE_CHECKS, Deadline, cancellation_scope, unless_cancelled
from graph.execution.node_count import NodeCount, counting
from graph.gc_pause import gc_paused
from graph.ir import Graph
from planner import warm
from planner.formulation.execution_check import ExecutionResult, RealizedPlan
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.offloading import PLAIN_SHARE, with_collectives_beside, with_copies_searched
from planner.formulation.proven_bound import with_lower_bound, with_multi_step_bound
from planner.formulation.search_result import SearchResult
from planner.lowering.lower import BodyAlternatives
from planner.lowering.realize import NodeSequence
from planner.pipeline import arena_repair
from planner.pipeline.bound_beside import BoundBeside, is_bounded_beside
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Order, Plan, Score
from planner.report.report import ReportData
from planner.request.plan_request import Request
from planner.search import first_plan, lexicographic, portfolio
from planner.search.improver_beside import cores

OnPlanned = Callable[[dict[str, Any]], None]  # gets a report

#: Stages before the first plan.
STAGES_BEFORE_PLAN = frozenset({"read", "differentiate"})
#: Planners that run compiled kernels.
KERNEL_PLANNERS = frozenset({"auto", "greedy", "blocks", "moment", "anneal", "search_order", "recurrent"})
#: Largest share of the time for the bound before the search, and share kept for the bounds after addresses, without and
#: with bounds beside the search.
FIRST_BOUND_PART, LAST_BOUND_PART, BESIDE_BOUND_PART = 0.5, 0.15, 0.05
#: Share of the search for quick layouts of its orders, to reserve time for arena repair once one exceeds the budget.
LOOK_PART = 0.03
#: Share of the search time below which a search without copies is not continued.
MIN_REST_PART = 0.05
#: With so many tasks, a search that has a plan within the budget leaves up to such a share of its time to what is done
#: outside it: what follows the addresses takes AFTER_PART of what precedes the first bound; FREE_SECONDS are for both.
MIN_OUTSIDE_TASKS, MAX_OUTSIDE_PART, AFTER_PART, FREE_SECONDS = 5_000, 0.6, 0.35, 0.2
#: Share of the budget that a search by the clock leaves to gaps between addresses, with so many tasks: the arena of a
#: plan with smaller gaps needs no repair, which takes as long as a new plan.
GAPS_PART, MIN_GAPS_TASKS = 5e-4, 50_000
#: Orders of a search that are kept in case the addresses of the best do not fit.
MAX_INCUMBENTS = 5
#: Seconds between progress events of nodes that run.
NODES_S = 0.2
#: Seconds to verify the certificate of a bound, per task and read of the problem; and seconds for that of a tree, whose
#: leaves are fewer in a larger problem, in at most so large a part of the time kept for bounds.
VERIFY_SECONDS, TREE_VERIFY_SECONDS, VERIFY_PART = 1e-5, 0.2, 0.4


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress event of a solve."""

    stage: str  # "read", "differentiate", "plan", "compile" (kernels, on first use), "layout", "rewrite" or "execute"
    seconds: float  # since the solve began
    incumbent_overhead: float | None = None  # share of the baseline's time
    incumbent_peak_bytes: int | None = None
    bound_overhead: float | None = None
    gap: float | None = None  # incumbent_overhead - bound_overhead
    nodes_run: int | None = None  # of stage "execute"
    nodes: int | None = None  # that run in stage "execute"


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """Result of a solve: the report, the planned graph, the plan and its node sequence."""

    report: dict[str, Any]
    source: Graph  # the graph that was planned
    runs: NodeSequence  # of the plan
    plan: Plan
    search_of: Callable[[], SearchResult] | None = None  # makes `search`; None: it is None

    @property
    def search(self) -> SearchResult | None:
        """Serves equivalent graphs, made when it is read; None: of a curve, or of several sets of shapes."""
        return None if self.search_of is None else self.search_of()

    @property
    def graph(self) -> Graph:
        """The rewritten graph, made when it is first needed."""
        return self.runs.rewritten

    @property
    def exit_code(self) -> int:
        """0 done, 1 over budget, 3 stopped, 4 internal error."""
        if self.report["executed"]["status"] == "different":
            return 4
        if self.report["plan"]["stopped"]:
            return 3
        return 1 if self.report["plan"]["status"] == "over_budget" else 0


class SolveStages:
    """Times the stages of one solve and emits progress events."""

    def __init__(
        self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event, has_seeds: bool = False
    ):
        """With `has_seeds` there is a plan from the start, so early stages ignore `cancel`."""
        self.on_progress, self.cancel, self.has_seeds = on_progress, cancel, has_seeds
        self.started = time.monotonic()
        self.elapsed: dict[str, float] = {}  # stage -> seconds
        self.stopped_by_clock = False
        self.lowered_after = 0.0  # seconds from the begin of the solve until the graph was formulated
        self.outside = 0.0  # seconds that a search with a plan within the budget leaves to what is done outside it
        self.left_outside = 0.0  # of these, left by the last search
        self.seconds = 0.0  # `search_seconds`, once their clock runs
        self.until = math.inf  # end of `search_seconds` on the monotonic clock, once that runs
        self.notes: list[str] = []
        self.incumbents: list[Candidate] = []  # of the last search, within the budget, best first
        self.first_found: Candidate | None = None  # of the last search of a large graph, at once and within the budget
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
        formulation = formulate(source, request, groups, None if self.has_seeds else self.cancel)
        self.lowered_after = time.monotonic() - self.started
        if request.planner in KERNEL_PLANNERS and formulation.lowered.problem.tasks > portfolio.TINY_TASKS:
            warm.ready(lambda: self.emit(Progress("compile", time.monotonic() - self.started)))
        return formulation

    def start_clock(self, formulation: Formulation) -> None:
        """Start the time of the search, which covers all from the first bound to the last address."""
        if formulation.goal.iterations is None:
            self.seconds = formulation.goal.seconds
            self.until = time.monotonic() + self.seconds
            if formulation.lowered.problem.tasks >= MIN_OUTSIDE_TASKS:
                outside = (1 + AFTER_PART) * self.lowered_after - FREE_SECONDS
                self.outside = min(MAX_OUTSIDE_PART * self.seconds, max(0.0, outside))

    def with_share(self, formulation: Formulation, share: float) -> Formulation:
        """The formulation with a share of the search time, whose clock then ends sooner."""
        if formulation.goal.iterations is not None:
            return formulation
        self.until -= (1 - share) * self.seconds
        self.seconds *= share
        return replace(formulation, goal=replace(formulation.goal, seconds=self.seconds))

    def with_engines(
        self, formulation: Formulation, plain: Plan, request: Request, is_given: bool
    ) -> tuple[Formulation, Plan]:
        """(formulation with the copies of the plan, the best plan found), in the time that plans without left.

        Collectives run beside compute if the formulation overlaps them. A plan that `is_given` keeps its order unless
        copies are requested.
        """
        if self.beside is not None:
            self.beside.end()
            self.beside = None
        goal = formulation.goal
        if goal.iterations is None:
            self.until += (1 - PLAIN_SHARE) * goal.seconds
            self.seconds = goal.seconds
        seconds = goal.seconds if math.isinf(self.until) else max(0.0, self.until - time.monotonic())
        if is_given and not request.offload:
            monitor = Monitor(lambda order: plain.score, seconds, goal.iterations, cancel_event=self.cancel)
            return with_collectives_beside(formulation, plain, request, monitor)
        found, plan, stopped = with_copies_searched(formulation, plain, request, self.cancel, seconds)
        self.stopped_by_clock |= stopped
        if not found.has_engines and goal.iterations is None and not self.cancel.is_set():
            return found, self._continued(formulation, plan, request)
        return found, plan

    def _continued(self, formulation: Formulation, plain: Plan, request: Request) -> Plan:
        """The plan without copies, or a better one that the time left finds: no copy was of use."""
        notes, rest = self.notes, self.for_search(formulation, request)
        if rest.goal.seconds < MIN_REST_PART * formulation.goal.seconds:
            return plain
        found = self.search(rest, request.planner, [plain.candidate])
        placed, _ = self.placed(formulation, found, request, [plain.candidate])
        if self.beside is not None:
            self.beside.end()
            self.beside = None
        self.notes = list(dict.fromkeys([*notes, *self.notes]))
        return min(plain, placed, key=lambda plan: (formulation.bytes_over_budget(plan), plan.score))

    def bounded(self, formulation: Formulation) -> Formulation:
        """Add the quick lower bound, or return the formulation unchanged once `cancel` is set or its time is over."""
        stop = self._stop_of_bound(formulation, self.until - (1 - FIRST_BOUND_PART) * formulation.goal.seconds)
        return unless_cancelled(stop, partial(with_lower_bound, quick=True), formulation)

    def with_tight_bound(self, formulation: Formulation, plan: Plan, until: float | None = None) -> Formulation:
        """Add the multi-step lower bound where `plan` leaves a gap, as far as time and `cancel` allow.

        `until` (on the monotonic clock) is by default the end of the search time.
        """
        beside, self.beside = self.beside, None
        if beside is not None:
            if not plan.score.bytes_over_budget:
                return beside.tightened(formulation, plan)
            beside.end()
        of_tree = min(TREE_VERIFY_SECONDS, VERIFY_PART * LAST_BOUND_PART * formulation.goal.seconds)
        more = max(0.0, of_tree - _verify_seconds(formulation))
        stop = self._stop_of_bound(formulation, (self.until if until is None else until) - more)
        return unless_cancelled(stop, partial(with_multi_step_bound, plan=plan), formulation)

    def _stop_of_bound(self, formulation: Formulation, until: float) -> Deadline:
        """Set once `cancel` is, or when only the time to verify the bound is left."""
        return Deadline(self.cancel, until - _verify_seconds(formulation))

    def _last_bound_part(self, formulation: Formulation) -> float:
        """Share of the time kept for bounds after addresses; none if that is too short to verify one."""
        if not formulation.goal.budget_bytes:
            return 0.0
        part = BESIDE_BOUND_PART if is_bounded_beside(formulation) else LAST_BOUND_PART
        return part if part * formulation.goal.seconds > _verify_seconds(formulation) else 0.0

    def for_search(self, formulation: Formulation, request: Request) -> Formulation:
        """The formulation with the time of the search: what is left, less that for arena repair and the last bounds."""
        goal = formulation.goal
        if goal.iterations is not None:
            return formulation
        kept = self._last_bound_part(formulation)
        if arena_repair.may_follow(formulation):
            kept += arena_repair.RESERVED_PART
        left = max(0.0, self.until - time.monotonic() - kept * goal.seconds)
        return replace(formulation, goal=replace(goal, seconds=left))

    def search(self, formulation: Formulation, planner: str, seeds: Sequence[Candidate] = ()) -> Plan:
        """Best plan found within the goal's time; no worse than any of the seeds."""
        rounded = formulation.in_arena_bytes()
        searched = _with_room_for_gaps(rounded, seeds)
        room = (rounded.goal.budget_bytes or 0) - (searched.goal.budget_bytes or 0)
        self.incumbents, self.is_shortened = [], False
        watched = arena_repair.may_follow(formulation) and formulation.goal.iterations is None

        self.until, self.left_outside = self.until + self.left_outside, 0.0
        next_look, reserved, one_at_a_time = 0.0, 0.0, threading.Lock()

        def improved(order: Order, score: Score) -> None:
            with one_at_a_time:  # an improver beside the search reports too
                note(order, score)

        def note(order: Order, score: Score) -> None:
            nonlocal reserved, next_look
            if room:
                score = score._replace(bytes_over_budget=max(0, score.bytes_over_budget - room))
            self.emit_found(searched, order, score)
            if self.first_found is not None and order is self.first_found.order:
                return  # by far not the best: nothing is shortened for it
            if self.beside is not None and not score.bytes_over_budget:
                self.beside.least_cost = min(self.beside.least_cost, score.cost)
            if not score.bytes_over_budget and not len(searched.lowered.problem.choices):
                self.incumbents = [Candidate(order, planner), *self.incumbents[: MAX_INCUMBENTS - 1]]
            if self.outside and not self.left_outside and not score.bytes_over_budget:
                self.left_outside = min(self.outside, MAX_OUTSIDE_PART * monitor.seconds)
                self.until -= self.left_outside
                monitor.seconds -= self.left_outside
            if watched and not score.bytes_over_budget and (began := time.monotonic()) >= next_look:
                more = max(0.0, arena_repair.probable_part(formulation, order) - reserved)
                reserved, self.is_shortened = reserved + more, self.is_shortened or more > 0
                monitor.seconds -= more * formulation.goal.seconds
                now = time.monotonic()
                next_look = now + (now - began) / LOOK_PART

        monitor = searched.monitor(improved, self.cancel)
        if formulation.goal.iterations is None:
            monitor.idle_cores = cores() - 1 - is_bounded_beside(formulation)
        if is_bounded_beside(formulation):
            # The verifier takes the rest: its time grows with the proof.
            stop = self._stop_of_bound(formulation, self.until - BESIDE_BOUND_PART * formulation.goal.seconds)
            # Limits of bounds follow from the requested seconds, not from those that a busy machine has left.
            requested = replace(formulation, goal=replace(formulation.goal, seconds=self.seconds))
            self.beside = BoundBeside(requested, stop, monitor.cost_bound)
        problem, self.first_found = searched.lowered.problem, None
        if planner == "auto" and not seeds:
            self.first_found = first_plan.first_within(problem, searched.goal, monitor)
        first = [] if self.first_found is None else [self.first_found]
        try:
            found = lexicographic.search(problem, searched.goal, planner, monitor, [*seeds, *first])
        finally:
            if self.beside is not None:
                self.beside.end_if_proven()
        plan = formulation.plan_of(found)
        self.stopped_by_clock = monitor.stopped_by_clock
        if planner != "auto":  # `auto` runs all planners; notes of one that does not apply are noise
            self.notes = monitor.notes
        return plan

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
            until = self.until + self.left_outside - self._last_bound_part(formulation) * formulation.goal.seconds
        known = (*self.incumbents, *seeds, *([] if self.first_found is None else [self.first_found]))
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


def _with_room_for_gaps(formulation: Formulation, seeds: Sequence[Candidate]) -> Formulation:
    """The formulation to search, with GAPS_PART less of the budget if the graph is large and that can be met.

    The budget stays whole if the baseline is within it, or if a seed is that would not be within less.
    """
    goal, budget = formulation.goal, formulation.goal.budget_bytes
    is_large = formulation.lowered.problem.tasks >= MIN_GAPS_TASKS and goal.iterations is None
    if not budget or not is_large or not arena_repair.may_follow(formulation):
        return formulation
    less = int(budget * (1 - GAPS_PART))
    if less <= formulation.bound.peak_bytes or formulation.baseline.score.peak_bytes <= budget:
        return formulation
    if any(less < formulation.plan_of(seed).score.peak_bytes <= budget for seed in seeds):
        return formulation
    return replace(formulation, goal=replace(goal, budget_bytes=less))


def _verify_seconds(formulation: Formulation) -> float:
    """Seconds to verify a bound."""
    problem = formulation.lowered.problem
    return VERIFY_SECONDS * (problem.tasks + len(problem.reads.index))
