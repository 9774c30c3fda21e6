"""Fit: the largest batch, or the longest sequence, whose training step fits a memory within a maximum overhead.

    size   1 ─── baseline fits ───┬── a plan is found ──┬── no plan is found ──┬── a bound proves there is none
           ╰ measured             ╰ predicted, measured ╰ bisected             ╰ predicted, measured

With `offload`, a size that no plan without copies to the host fits is planned with copies (`fit_copies.py`).

Bytes grow almost linearly with the size. From two sizes follow the size at which the baseline stops fitting, and the
size at which the lower bound exceeds the memory. Between them each trial is read, differentiated and planned; plans of
other sizes are replayed first, because they often fit. Every size reported as fitting has a checked plan.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graph.cancellation import GRACE_CHECKS, CancellationError, cancellation_scope
from graph.errors import BadGraph
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.errors import BadRequest
from planner.formulation.execution_check import NOT_EXECUTED, ExecutionResult
from planner.formulation.formulation import Formulation
from planner.formulation.offloading import rank, why_no_copies, without_copies
from planner.formulation.search_result import SearchResult
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline import fit_copies
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.pipeline.solve import solve
from planner.problem import same_dataflow
from planner.problem.monitor import EarlyEnd, Monitor
from planner.problem.plan import Candidate, Goal, Order, Plan, Score
from planner.request.curve_and_fit_request import FitRequest
from planner.request.plan_request import Request

FORMAT = "remat-fit/1"
MAX_TRIALS, MAX_SIZE = 40, 2**31 - 1
#: Share of the search time for finding the size; share of that for each size before bisection.
SIZE_PART, FIRST_PART = 0.8, 0.25
#: Least search time of one size, seconds.
MIN_SEARCH_SECONDS = 0.1
#: Planner tried before `auto`; often sufficient.
QUICK_PLANNER = "greedy"
SEQUENCE_NAME = re.compile(r"(^|_)(seq|sequence|tokens?|time|steps?|length|len|t|s|l)(_|$)|seq|length", re.IGNORECASE)
PROVEN, NOT_FOUND, REFUSED = "proven", "not_found", "refused"


@dataclass(frozen=True, eq=False, slots=True)
class FitResult:
    """The document `remat-fit/1`, and the outcome at the largest size."""

    document: dict[str, Any]
    outcome: Outcome | None  # None: no size fits
    request: Request  # of the outcome, with the size bound

    @property
    def exit_code(self) -> int:
        """0 done, 1 no size fits, 3 stopped, 4 internal error."""
        return 1 if self.outcome is None else self.outcome.exit_code


@dataclass(frozen=True, eq=False, slots=True)
class SizeTrial:
    """Result of trying one size."""

    size: int
    fits: bool
    why: str  # PROVEN, NOT_FOUND or REFUSED if it does not fit; else ""
    said: str = ""  # message about `why`
    formulation: Formulation | None = None  # None: the model rejects the size
    plan: Plan | None = None
    small_host: str = ""  # message that the host memory holds none of the values of this size

    def row(self) -> dict[str, Any]:
        """Row of the document."""
        row = {"size": self.size, "fits": self.fits, "why": self.why, "said": self.said}
        if self.formulation is None:
            return row
        formulation, plan = self.formulation, self.plan
        return row | {
            "peak_bytes": None if plan is None else formulation.counted_peak(plan),
            "needed_bytes": None if plan is None else formulation.needed_bytes(plan),
            "overhead": None if plan is None else formulation.overhead(plan.score.cost),
            "bound_peak_bytes": formulation.count.counted(formulation.bound.peak_bytes),
            "bound_overhead": formulation.overhead(formulation.bound.cost),
        }


def fit(
    model: bytes | Graph,
    fit_request: FitRequest,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
) -> FitResult:
    """Find the largest size that fits, with its plan. If no size fits, that is a result, not an error.

    Setting `cancel` ends the search; the largest size found to fit by then is returned.
    Raises BadGraph, BadRequest; CancellationError if `cancel` is set before size 1 was tried.
    """
    stages = SolveStages(on_progress, cancel or threading.Event())
    with gc_paused(), stages("plan"):
        dimension = growing_dimension(model, fit_request, limits)
        sizes = SizeSearch(model, fit_request, dimension, limits, stages)
        best = sizes.largest()
    outcome, request = None, fit_request.request
    if best is not None and best.plan is not None and best.formulation is not None:
        request = sizes.final_request(best)
        final = partial(solve, model, request, limits=limits, on_progress=on_progress, cancel=stages.cancel)
        known = SearchResult.of(best.formulation, best.plan, (), False, ExecutionResult(NOT_EXECUTED))
        if best.formulation.lowered.copies is None:
            outcome = final(seeds=[best.plan.candidate])
            if not outcome.report["plan"]["within_budget"]:  # a plan with less time whose addresses do not fit
                outcome = final(known=known)
        else:  # an order with copies is no seed of a search
            outcome = final()
            if not outcome.report["plan"]["within_budget"] or best.plan.score < outcome.plan.score:
                outcome = final(known=known)
    return FitResult(_document(fit_request, dimension, sizes, best, outcome, stages), outcome, request)


def growing_dimension(model: bytes | Graph, fit_request: FitRequest, limits: Limits | None) -> str | None:
    """Name of the dimension that grows; None for the batch. Raises BadRequest if it is missing or ambiguous."""
    if fit_request.grow == "batch":
        return None
    open_dimensions = _unbound(model, fit_request.request, limits)
    named = (
        [fit_request.grow]
        if fit_request.grow != "sequence"
        else [name for name in open_dimensions if SEQUENCE_NAME.search(name)]
    )
    if len(named) == 1 and named[0] in open_dimensions:
        return named[0]
    if fit_request.grow == "sequence" and len(open_dimensions) == 1:
        return open_dimensions[0]
    shown = ", ".join(open_dimensions) if open_dimensions else "none: every length is a number"
    raise BadRequest.one(
        "unknown_dimension",
        "grow",
        f"{fit_request.grow!r}; dimensions without a length: {shown}",
        "one named dimension that is left open",
        "name it, such as --grow N, and give the others with --dim"
        if open_dimensions
        else "export the model with a named dimension, or grow the batch",
    )


def _unbound(model: bytes | Graph, request: Request, limits: Limits | None) -> list[str]:
    """Names of the dimensions without a length."""
    try:
        load_model(model, request, limits)
    except BadGraph as error:
        names = [
            finding.path.removeprefix("dims.")
            for finding in error.findings
            if finding.code == "unbound_dimension" and finding.path.startswith("dims.")
        ]
        if not names:
            raise
        return names
    return []


class SizeSearch:
    """Search over the sizes of one model."""

    def __init__(
        self,
        model: bytes | Graph,
        fit_request: FitRequest,
        dimension: str | None,
        limits: Limits | None,
        stages: SolveStages,
    ):
        self.model, self.fit_request, self.dimension, self.limits, self.stages = (
            model,
            fit_request,
            dimension,
            limits,
            stages,
        )
        self.started = time.monotonic()
        self.formulating = 0.0  # seconds of reading and formulating the sizes tried
        self.tried: dict[int, SizeTrial] = {}
        self.notes: list[str] = []  # for the document
        self.part = FIRST_PART  # share of the remaining size search for one size

    def largest(self) -> SizeTrial | None:
        """Trial of the largest size found to fit; None if size 1 does not fit."""
        first = self.at(1, must_read=True)
        if not first.fits:
            return None
        low, high = self._bracket(first, self.at(2))
        while high - low > 1 and self._has_trials_left():
            self.part = 1 / (high - low).bit_length()  # at most this many bisections are left
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).fits else (low, middle)
        if high - low > 1:
            self.notes.append(f"the search ended before sizes {low + 1} to {high - 1} were tried")
        return self.tried[low]

    def _bracket(self, first: SizeTrial, second: SizeTrial) -> tuple[int, int]:
        """(size that fits, larger size that does not); the latter is MAX_SIZE + 1 while none is known."""
        if not second.fits:
            return 1, 2
        assert first.formulation is not None and second.formulation is not None
        if first.formulation.lowered.problem.size.tolist() == second.formulation.lowered.problem.size.tolist():
            raise BadRequest.one(
                "does_not_grow",
                "grow",
                f"{self.fit_request.grow!r}, at 1 as large as at 2",
                "something that changes sizes",
                "grow a dimension the model has left open",
            )
        low, high = 2, MAX_SIZE + 1
        for size in self._predicted_sizes(first.formulation, second.formulation):
            if low < size < high and self._has_trials_left():
                low, high = (size, high) if self.at(size).fits else (low, size)
        while high > MAX_SIZE and low < MAX_SIZE and self._has_trials_left():
            size = min(2 * low, MAX_SIZE)
            low, high = (size, high) if self.at(size).fits else (low, size)
        return low, high

    def _predicted_sizes(self, one: Formulation, two: Formulation) -> list[int]:
        """Linear predictions: largest size whose baseline fits, and smallest size whose peak bound does not."""
        budget = one.goal.budget_bytes or 0
        given = _crossing(one.baseline.score.peak_bytes, two.baseline.score.peak_bytes, budget)
        least = _crossing(one.bound.peak_bytes, two.bound.peak_bytes, budget)
        return [given, least + 1]

    def _has_trials_left(self) -> bool:
        return len(self.tried) < MAX_TRIALS and not self.stages.cancel.is_set() and not self._is_over()

    def _is_over(self) -> bool:
        """Whether the time of the sizes is over, of which reading and formulating them took less than half."""
        request, elapsed = self.fit_request.request, time.monotonic() - self.started
        is_over = elapsed > SIZE_PART * request.search_seconds and 2 * self.formulating < elapsed
        return request.iterations is None and is_over

    def request_at(self, size: int) -> Request:
        """The request with the growing dimension bound to `size`."""
        request = self.fit_request.request
        if self.dimension is None:
            return replace(request, batch=size)
        return replace(request, dims={**request.dims, self.dimension: size})

    def final_request(self, best: SizeTrial) -> Request:
        """Request of the final solve, as if it were a plan request for that size alone."""
        request = self.request_at(best.size)
        if best.small_host:
            request = without_copies(request)
        given = {name: sent for name, sent in request.given.items() if name not in ("grow", "max_overhead")}
        given |= {"batch": best.size} if self.dimension is None else {"dims": dict(request.dims)}
        if request.iterations is None:
            left = self._seconds_left() - self.formulating / len(self.tried)  # the size is read once more
            return replace(request, given=given, search_seconds=max(1e-3, left))
        return replace(request, given=given, iterations=max(1, round(request.iterations * (1 - SIZE_PART))))

    def at(self, size: int, must_read: bool = False) -> SizeTrial:
        """Trial of a size, computed once."""
        if size not in self.tried:
            self.tried[size] = self._trial(size, must_read)
        return self.tried[size]

    def _trial(self, size: int, must_read: bool) -> SizeTrial:
        """Try one size: baseline first, then the lower bounds, then a search.

        Raises BadGraph and CancellationError about reading the model only if `must_read`.
        """
        request, began = self.request_at(size), time.monotonic()
        try:
            with cancellation_scope(self.stages.cancel, GRACE_CHECKS):
                source, _ = training_graph(self.model, load_model(self.model, request, self.limits), request)
            formulation = self.stages.formulate(source, request)
        except CancellationError as stop:
            if must_read:
                raise
            return SizeTrial(size, False, NOT_FOUND, str(stop))
        except BadGraph as error:
            if must_read:
                raise _about_growing(error) from None
            return SizeTrial(size, False, REFUSED, str(error.findings[0]) if error.findings else str(error))
        self.formulating += time.monotonic() - began
        may_copy, small_host = fit_copies.may_copy(formulation, request, is_first=must_read)
        return replace(self._tried(size, formulation, may_copy), small_host=small_host)

    def _tried(self, size: int, formulation: Formulation, may_copy: bool) -> SizeTrial:
        """Trial of a size that the model takes; the bounds after the first do not hold for plans with copies."""
        budget = formulation.goal.budget_bytes or 0
        if formulation.baseline.score.peak_bytes <= budget:
            plan = formulation.evaluated(formulation.baseline.order, "as_given")
            if trial := self._fitting(size, formulation, plan):
                return trial
        if formulation.bound.peak_bytes > budget:
            message = f"the minimum peak is {formulation.count.counted(formulation.bound.peak_bytes):,} bytes"
            return SizeTrial(size, False, PROVEN, message, formulation)
        if not may_copy:
            formulation = self.stages.bounded(formulation)
        if formulation.bound.cost > self._max_ticks(formulation):
            minimum = _percent(formulation, formulation.bound.cost)
            message = f"every plan within the memory is at least {minimum} slower"
            return SizeTrial(size, False, PROVEN, message, formulation)
        return self._planned(size, formulation, may_copy)

    def _planned(self, size: int, formulation: Formulation, may_copy: bool) -> SizeTrial:
        """Trial with the best plan found: a replayed plan of another size, or a new one."""
        problem, request = formulation.lowered.problem, self.fit_request.request
        seeds = [
            known.plan.candidate
            for known in self.tried.values()
            if known.plan is not None
            and known.formulation is not None
            and same_dataflow(problem, known.formulation.lowered.problem)
        ]
        for seed in seeds:
            if trial := self._fitting(size, formulation, formulation.plan_of(seed)):
                return trial
        if may_copy:
            fitting = [(each.formulation, each.plan) for each in self.tried.values() if each.formulation and each.plan]
            for found in fit_copies.replayed(
                formulation, self._goal(formulation), fitting, request, self.stages.cancel
            ):
                if self._is_within(*found):
                    return self._checked(size, *found)
        plan, planner = formulation.baseline, request.planner
        for name in [QUICK_PLANNER, planner] if planner == "auto" else [planner]:
            plan = self._search(formulation, name, seeds)
            if trial := self._fitting(size, formulation, plan, repair=True):
                return trial
            seeds = [*seeds, plan.candidate]
        plan = formulation.placed(plan, request.layout, self._layout_monitor(formulation))
        if may_copy:
            goal = self._goal(formulation)
            found = fit_copies.planned(formulation, plan, goal, request, self.stages, self._is_within)
            if self._is_within(*found):
                return self._checked(size, *found)
            formulation, plan = min((formulation, plan), found, key=lambda each: rank(*each))
        if over := formulation.bytes_over_budget(plan):
            excess = f"is {over:,} bytes over the memory"
            if formulation.counted_peak(plan) <= (formulation.budget_bytes or 0):
                excess += " with its addresses"
        elif over := formulation.host_bytes_over_limit(plan):
            excess = f"is {over:,} bytes over the host memory"
        else:
            excess = f"is {_percent(formulation, plan.score.cost)} slower"
        return SizeTrial(size, False, NOT_FOUND, f"the best plan found {excess}", formulation, plan)

    def _search(self, formulation: Formulation, planner: str, seeds: Sequence[Candidate]) -> Plan:
        """Best plan within this size's share of the remaining time, or the first acceptable one."""
        goal, enough = self._goal(formulation), EarlyEnd(self.stages.cancel)

        def improved(_: Order, score: Score) -> None:
            if self._is_acceptable(formulation, score):
                enough.set()

        searched = replace(formulation, goal=goal).in_arena_bytes()
        monitor = searched.monitor(improved, enough)
        plan = searched.search(planner, monitor, seeds)
        self.stages.stopped_by_clock |= monitor.stopped_by_clock
        return formulation.plan_of(plan.candidate)

    def _fitting(self, size: int, formulation: Formulation, plan: Plan, repair: bool = False) -> SizeTrial | None:
        """Trial of the size if the plan with its addresses is acceptable, after a repair of those if wanted."""
        if not self._is_acceptable(formulation, plan.score):
            return None
        request = self.fit_request.request
        if repair:
            until = time.monotonic() + max(MIN_SEARCH_SECONDS * self.part, self._trial_seconds(formulation))
            plan, _ = self.stages.placed(formulation, plan, request, until=until)
        else:
            plan = formulation.placed(plan, request.layout, self._layout_monitor(formulation))
        if not self._is_within(formulation, plan):
            return None
        return self._checked(size, formulation, plan)

    def _checked(self, size: int, formulation: Formulation, plan: Plan) -> SizeTrial:
        """Trial of a size that fits; the independent checker accepts its plan."""
        formulation.check(plan)
        self.stages.emit_incumbent(formulation.overhead(plan.score.cost), formulation.counted_peak(plan))
        return SizeTrial(size, True, "", "", formulation, plan)

    def _goal(self, formulation: Formulation) -> Goal:
        """The goal of a search, with its share of the remaining time."""
        goal = formulation.goal
        iterations = None if goal.iterations is None else max(1, int(goal.iterations * SIZE_PART * self.part))
        return goal.limited(max(MIN_SEARCH_SECONDS, self._trial_seconds(formulation)), iterations)

    def _layout_monitor(self, formulation: Formulation) -> Monitor:
        """Monitor of the addresses of one plan, with its share of the remaining time, which may be over."""
        goal = formulation.goal.limited(max(0.0, self._trial_seconds(formulation)), formulation.goal.iterations)
        return replace(formulation, goal=goal).monitor(cancel=self.stages.cancel)

    def _trial_seconds(self, formulation: Formulation) -> float:
        """Share of the remaining time for one size; not above 0 once that is over."""
        return (self._seconds_left() - (1 - SIZE_PART) * formulation.goal.seconds) * self.part

    def _is_within(self, formulation: Formulation, plan: Plan) -> bool:
        """Whether the plan with its addresses is acceptable."""
        return formulation.is_within_budget(plan) and self._is_acceptable(formulation, plan.score)

    def _is_acceptable(self, formulation: Formulation, score: Score) -> bool:
        return score.bytes_over_budget == 0 and score.cost <= self._max_ticks(formulation)

    def _max_ticks(self, formulation: Formulation) -> int:
        return int(formulation.baseline_cost * (1 + self.fit_request.max_overhead))

    def _seconds_left(self) -> float:
        return self.fit_request.request.search_seconds - (time.monotonic() - self.started)


def _about_growing(error: BadGraph) -> Exception:
    """Error for a model that cannot be read at size 1: the batch is the dimension that grows."""
    if [finding.path for finding in error.findings] != ["batch"]:
        return error
    return BadRequest.one(
        "cannot_grow",
        "grow",
        "a model none of whose inputs has a leading length",
        "inputs with shapes",
        "declare shape and dtype of the inputs, or grow a dimension by its name",
    )


def _percent(formulation: Formulation, cost: int) -> str:
    return f"{formulation.overhead(cost):.2%}"


def _crossing(at_one: int, at_two: int, limit: int) -> int:
    """Largest size at which the line through the values at sizes 1 and 2 is at most `limit`."""
    slope = at_two - at_one
    return MAX_SIZE if slope <= 0 else min(MAX_SIZE, 1 + max(0, (limit - at_one) // slope))


def _no_copies(request: Request, best: SizeTrial | None, smallest: Formulation | None) -> list[str]:
    """Warnings that there are no copies to the host, beside those of the report."""
    if best is not None:
        return [f"no copies to the host at {best.size}: {best.small_host}"] if best.small_host else []
    why = why_no_copies(smallest, request) if request.offload and smallest is not None else ""
    return [f"no copies to the host: {why}"] if why else []


def _document(
    fit_request: FitRequest,
    dimension: str | None,
    sizes: SizeSearch,
    best: SizeTrial | None,
    outcome: Outcome | None,
    stages: SolveStages,
) -> dict[str, Any]:
    """The document `remat-fit/1`."""
    known = sizes.tried[min(sizes.tried)].formulation
    size = 0 if best is None else best.size
    larger = sorted(tried for tried in sizes.tried if tried > size)
    after = sizes.tried[larger[0]].row() if larger else None
    report = {} if outcome is None else outcome.report
    return {
        "format": FORMAT,
        "model": report.get("model"),
        "grow": fit_request.grow,
        "dimension": dimension,
        "size": None if best is None else best.size,
        "budget_bytes": None if known is None else known.budget_bytes,
        "max_overhead": fit_request.max_overhead,
        "next": after,
        "tried": [sizes.tried[tried].row() for tried in sorted(sizes.tried)],
        "plan": report.get("plan"),
        "checked": True,
        "warnings": [*sizes.notes, *_no_copies(fit_request.request, best, known), *report.get("warnings", ())],
        "stopped": stages.cancel.is_set(),
        "elapsed": {"sizes": round(stages.elapsed["plan"], 6), **report.get("elapsed", {})},
    }
