"""A lowered graph and what is to be reached on it, in the planner's terms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.bounds import (
    claims,
    first_of_set,
    held_at_end,
    largest_task,
    multi_step_lp,
    peak_cut,
    step_branch_and_bound,
    step_cut,
)
from planner.errors import BadRequest
from planner.formulation.metrics import LowerBound, MemoryAccounting
from planner.layout import place
from planner.lowering.lower import LoweredGraph
from planner.problem import RESIDENT, Problem, liveness
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Plan, Score
from planner.request.budget import MAX_BYTES
from planner.request.plan_request import DEFAULT_OVERHEAD, Request
from planner.search import portfolio
from planner.verify.checker import DisplayNames

ALIGNMENT = 64  # bytes; exists in layouts only
# Of so many moments that cost most the whole choices are bounded.
BRANCHED_STEPS = 2


@dataclass(frozen=True, eq=False, slots=True)
class Formulation:
    """One problem, one goal, and how their figures are reported."""

    lowered: LoweredGraph
    goal: Goal
    count: MemoryAccounting
    budget_bytes: int | None  # as reported; None when an overhead is the limit
    bound: LowerBound
    baseline: Plan
    memory_bytes: int  # of the device, or what the plan is to fit
    warnings: tuple[str, ...] = ()

    @property
    def baseline_cost(self) -> int:
        return self.baseline.score.cost

    def monitor(
        self, on_progress: Callable[[Order, Score], None] | None = None, cancel: threading.Event | None = None
    ) -> Monitor:
        def judge(order: Order) -> Score:
            return portfolio.goal_score(self.lowered.problem, self.goal, order)

        return Monitor(
            judge,
            self.goal.seconds,
            self.goal.iterations,
            on_progress,
            cancel or threading.Event(),
            cost_bound=self.bound.cost if self.goal.budget_bytes else 0,
            peak_bound=self.bound.peak_bytes,
        )

    def names(self) -> DisplayNames:
        """What messages call the tasks and buffers."""
        return DisplayNames(self.lowered.name_of_task, self.lowered.name_of_buffer)

    def evaluated(self, order: Order, planner: str, choices: Sequence[int] = ()) -> Plan:
        """The order as a plan, measured by the one evaluator."""
        return evaluate(self.lowered.problem, self.goal, order, planner, choices)

    def placed(self, plan: Plan, layout: str, cancel: threading.Event | None = None) -> Plan:
        """The plan with an address for every instance and workspace, unless no layout is wanted.

        A set `cancel` ends the search for better ones.
        """
        if layout == "none":
            return plan
        problem = resolve_choices(self.lowered.problem, plan.choices)
        offsets, arena_bytes = place(
            layout, plan.lifetimes, problem.size, problem.workspace[plan.order], ALIGNMENT, self.monitor(cancel=cancel)
        )
        return replace(plan, offsets=offsets, arena_bytes=arena_bytes)

    def resident_arena_bytes(self, plan: Plan) -> int:
        """Bytes at the bottom of the arena that belong to residents and are left out of what is counted."""
        problem, lives = self.lowered.problem, plan.lifetimes
        if not self.count.excluded_bytes or plan.offsets is None:
            return 0
        resident = np.flatnonzero((problem.hold[lives.buffer] == RESIDENT) & (lives.stop > lives.start))
        ends = plan.offsets[resident] + problem.size[lives.buffer[resident]]
        return -(-int(ends.max(initial=0)) // ALIGNMENT) * ALIGNMENT


def formulate_lowered(
    lowered: LoweredGraph,
    request: Request,
    order_is_given: bool,
    device_bytes: int,
    fits_bytes: int | None,
    cancel: threading.Event | None = None,
) -> Formulation:
    """The question `request` puts to a lowered graph.

    `order_is_given` is what the document says; `device_bytes` the device's memory, and
    `fits_bytes` the memory to fit when that is the goal. A set `cancel` ends a search for the smallest peak.
    Raises BadRequest when strict phases are asked of a document that mixes them, or bytes are past 2^63 - 1.
    """
    problem = lowered.problem
    most = MAX_BYTES - int(problem.size.sum()) - int(problem.workspace.max(initial=0))
    if request.reserve > most:
        raise BadRequest.one(
            "bad_field",
            "reserve",
            f"{request.reserve} bytes beside those of the step",
            f"at most {most}: 2^63 - 1 together",
            "set less aside",
        )
    strict, warnings = _strictness(lowered, request)
    goal = Goal(
        max_overhead=request.max_overhead,
        order_is_given=order_is_given if request.order is None else request.order == "given",
        strict_phases=strict,
        seconds=request.search_seconds,
        iterations=request.iterations,
        seed=request.seed,
    )
    question = Formulation(
        lowered,
        goal,
        MemoryAccounting.of(lowered, request.counts, request.reserve),
        None,
        _bound(problem),
        evaluate(problem, goal, np.arange(problem.tasks), "as_given"),
        device_bytes if fits_bytes is None else fits_bytes,
        warnings,
    )
    return with_limit(question, request, fits_bytes, cancel)


def _bound(problem: Problem) -> LowerBound:
    """The best proven bound: every task runs once at least, and no peak is below what must be there at one time."""
    plain = relax_choices(problem)
    task, end = largest_task.bound(plain), held_at_end.bound(plain)
    once = int(plain.cost[~plain.optional].sum())
    peak = largest_task.claim(task) if task.bytes >= end else held_at_end.claim(end)
    binding = task.task if task.bytes >= end else -1
    return LowerBound(
        once, once, peak["value"], peak["kind"], "free", "solver", binding, (peak, claims.single_run_claim(once))
    )


def with_lower_bound(question: Formulation, quick: bool = False) -> Formulation:
    """The question with what the goal costs at least: ticks within a budget, or bytes; certified where that is so.

    A quick one is that of one moment: whoever asks many questions has no time for more.
    """
    goal, bound = question.goal, question.bound
    plain = relax_choices(question.lowered.problem)
    if goal.budget_bytes:
        bound = _tighter(bound, step_cut.bound(plain, goal, goal.budget_bytes).claim)
    else:
        bound = _tighter(bound, peak_cut.bound(plain, goal).claim)
    question = _certified(question, bound)
    return question if quick else with_multi_step_bound(question)


def with_multi_step_bound(question: Formulation, plan: Plan | None = None) -> Formulation:
    """The question with the bound of several moments, or of one in branches, where the plan leaves a gap to one."""
    goal, bound = question.goal, question.bound
    if not goal.budget_bytes or (plan is not None and plan.score.bytes_over_budget):
        return question
    problem, tighter = relax_choices(question.lowered.problem), bound

    def is_open() -> bool:
        return plan is None or plan.score.cost > tighter.cost

    cuts = step_cut.best_cuts(problem, goal, goal.budget_bytes, BRANCHED_STEPS) if is_open() else []
    for cut in cuts[:1]:
        tighter = _tighter(tighter, cut.claim)
    if cuts and is_open():
        tighter = _tighter(tighter, first_of_set.bound(problem, goal, goal.budget_bytes, tighter.cost))
    for cut in cuts:
        if is_open():
            tighter = _tighter(tighter, step_branch_and_bound.bound(problem, goal, goal.budget_bytes, cut.task))
    if cuts and is_open():
        tighter = _tighter(tighter, multi_step_lp.bound(problem, goal, goal.budget_bytes, cuts[0].task))
    return question if tighter is bound else _certified(question, tighter)


def _certified(question: Formulation, bound: LowerBound) -> Formulation:
    """The question with the bound, certified where the verifier accepts its claims."""
    refused = claims.rejection_reason(question.lowered.problem, list(bound.claims))
    return replace(question, bound=replace(bound, proof="solver" if refused else "certified"))


def _tighter(bound: LowerBound, claim: claims.Claim | None) -> LowerBound:
    """The bound with another claim, where that says more."""
    peak, cost = bound.claims
    if claim is None or claim["value"] <= (peak if claim["of"] == "peak" else cost)["value"]:
        return bound
    bound = replace(bound, kind=claim["kind"], order=claim["order"])
    if claim["of"] == "peak":
        return replace(bound, peak_bytes=claim["value"], binding_task=claim["moments"][0], claims=(claim, cost))
    return replace(bound, cost=claim["value"], claims=(peak, claim))


def with_limit(
    question: Formulation, request: Request, fits_bytes: int | None, cancel: threading.Event | None = None
) -> Formulation:
    """The question with its budget, or the overhead it may cost, in the goal."""
    count, goal = question.count, question.goal
    whole = count.counted(question.baseline.score.peak_bytes)
    if fits_bytes is not None:
        budget = fits_bytes
    elif request.budget is None:
        extra = DEFAULT_OVERHEAD if request.max_overhead is None else request.max_overhead
        return replace(question, goal=replace(goal, max_overhead=extra))
    elif request.fraction_of == "reducible":
        budget = request.budget.of(whole, count.counted(_smallest_peak(question, cancel)))
    else:
        budget = request.budget.of(whole)
    held = 0 if request.lowest_peak else max(0, count.held(budget))
    return replace(question, goal=replace(goal, budget_bytes=held), budget_bytes=budget)


def _smallest_peak(question: Formulation, cancel: threading.Event | None) -> int:
    """The smallest peak the planners reach, in the planner's bytes."""
    lowest = replace(question, goal=replace(question.goal, budget_bytes=0))
    problem = question.lowered.problem
    found = portfolio.search(problem, lowest.goal, "auto", lowest.monitor(cancel=cancel))
    return liveness.peak(resolve_choices(problem, found.choices), found.order)


def _strictness(lowered: LoweredGraph, request: Request) -> tuple[bool, tuple[str, ...]]:
    """Whether phases are strict. A document that mixes them is planned mixed, unless strict was asked for."""
    back = np.flatnonzero(np.diff(lowered.problem.phase) < 0)
    if request.phases == "mixed":
        return False, ()
    if not len(back):
        return True, ()
    task = int(back[0]) + 1
    if request.phases == "strict":
        raise BadRequest.one(
            "phases_interleave",
            "phases",
            f"{lowered.name_of_task(task)} follows a node of a later phase",
            "forward, then backward, then update",
            'reorder the nodes, or ask for "mixed" phases',
        )
    return False, (f"phases interleave from {lowered.name_of_task(task)} on: planned with mixed phases",)
