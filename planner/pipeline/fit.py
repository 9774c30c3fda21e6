"""The largest batch, or the longest sequence, whose training step fits a memory within some extra time.

    size   1 ─── as given fits ───┬── a plan is found ──┬── none is found ──┬── a bound proves there is none
           ╰ measured             ╰ foretold, measured  ╰ halved            ╰ foretold, measured

Bytes grow as straight lines do, nearly: two sizes foretell where the step as given stops to fit, and where even a
bound says that nothing does. Between the two each try is read, differentiated and planned anew; plans of other sizes
are replayed first, for they often fit as they are. Every size that is said to fit has a plan that was checked.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graph.cancellation import GRACE_CHECKS, CancellationError, cancellation_scope
from graph.errors import BadGraph
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.errors import BadRequest
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import overhead
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.pipeline.solve import solve
from planner.problem import same_dataflow
from planner.problem.plan import Order, Plan, Score
from planner.request.curve_and_fit_request import FitRequest
from planner.request.plan_request import Request
from planner.search import lexicographic
from planner.search.portfolio import Candidate
from planner.verify.checker import check

FORMAT = "remat-fit/1"
MAX_TRIALS, MAX_SIZE = 40, 2**31 - 1
#: Part of the search that looks for the size; of that what a size gets before there are two to choose between.
SIZE_PART, FIRST_PART = 0.8, 0.25
#: A size is not given up in less than this many seconds.
MIN_SEARCH_SECONDS = 0.1
#: This planner is asked first: it often is enough.
QUICK_PLANNER = "greedy"
SEQUENCE_NAME = re.compile(r"(^|_)(seq|sequence|tokens?|time|steps?|length|len|t|s|l)(_|$)|seq|length", re.IGNORECASE)
PROVEN, NOT_FOUND, REFUSED, NOT_TRIED = "proven", "not_found", "refused", "not_tried"


@dataclass(frozen=True, eq=False, slots=True)
class FitResult:
    """What comes out: the document `remat-fit/1`, and the plan at the largest size; None where no size fits."""

    document: dict[str, Any]
    outcome: Outcome | None
    request: Request  # with the length of what grows, as the plan was asked

    @property
    def exit_code(self) -> int:
        """0 done, 1 no size fits, 3 stopped, 4 our own fault."""
        return 1 if self.outcome is None else self.outcome.exit_code


@dataclass(frozen=True, eq=False, slots=True)
class SizeTrial:
    """One size and what became of it."""

    size: int
    fits: bool
    why: str  # PROVEN, NOT_FOUND or REFUSED where it does not fit; else ""
    said: str = ""
    question: Formulation | None = None  # None where the model takes no such size
    plan: Plan | None = None

    def row(self) -> dict[str, Any]:
        """The try in the words of the document."""
        row = {"size": self.size, "fits": self.fits, "why": self.why, "said": self.said}
        if self.question is None:
            return row
        question, plan = self.question, self.plan
        return row | {
            "peak_bytes": None if plan is None else question.count.counted(plan.score.peak_bytes),
            "overhead": None if plan is None else overhead(plan.score.cost, question.baseline_cost),
            "bound_peak_bytes": question.count.counted(question.bound.peak_bytes),
            "bound_overhead": overhead(question.bound.cost, question.baseline_cost),
        }


def fit(
    model: bytes | Graph,
    asked: FitRequest,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
) -> FitResult:
    """The largest size that fits, with its plan. Raises BadGraph, BadRequest; that none fits is a result.

    A set `cancel` ends the search; the largest size that was found to fit by then is returned. Raises Stopped where
    it comes so early that the smallest was not looked at.
    """
    stages = SolveStages(on_progress, cancel or threading.Event())
    with gc_paused(), stages("plan"):
        dimension = growing_dimension(model, asked, limits)
        sizes = SizeSearch(model, asked, dimension, limits, stages)
        best = sizes.largest()
    outcome, request = None, asked.request
    if best is not None and best.plan is not None:
        request = sizes.final_request(best)
        outcome = solve(
            model,
            request,
            limits=limits,
            on_progress=on_progress,
            cancel=stages.cancel,
            seeds=[Candidate(best.plan.order, best.plan.planner, best.plan.choices)],
        )
    return FitResult(_document(asked, dimension, sizes, best, outcome, stages), outcome, request)


def growing_dimension(model: bytes | Graph, asked: FitRequest, limits: Limits | None) -> str | None:
    """The dimension that grows; None for the batch. Raises BadRequest where it is not clear which."""
    if asked.grow == "batch":
        return None
    there = _unbound(model, asked.request, limits)
    named = [asked.grow] if asked.grow != "sequence" else [name for name in there if SEQUENCE_NAME.search(name)]
    if len(named) == 1 and named[0] in there:
        return named[0]
    if asked.grow == "sequence" and len(there) == 1:
        return there[0]
    shown = ", ".join(there) if there else "none: every length is a number"
    raise BadRequest.one(
        "unknown_dimension",
        "grow",
        f"{asked.grow!r}; dimensions without a length: {shown}",
        "one named dimension that is left open",
        "name it, such as --grow N, and give the others with --dim"
        if there
        else "export the model with a named dimension, or grow the batch",
    )


def _unbound(model: bytes | Graph, request: Request, limits: Limits | None) -> list[str]:
    """Names of the dimensions nobody gave a length."""
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


class EarlyStop(threading.Event):
    """Set when a plan is good enough, or when whoever waits wants to stop."""

    def __init__(self, cancel: threading.Event):
        super().__init__()
        self.cancel = cancel

    def is_set(self) -> bool:
        return self.cancel.is_set() or super().is_set()


class SizeSearch:
    """One model at several sizes."""

    def __init__(
        self, model: bytes | Graph, asked: FitRequest, dimension: str | None, limits: Limits | None, stages: SolveStages
    ):
        self.model, self.asked, self.dimension, self.limits, self.stages = model, asked, dimension, limits, stages
        self.started = time.monotonic()
        self.tried: dict[int, SizeTrial] = {}
        self.part = FIRST_PART  # of what is left of the search for one size

    def largest(self) -> SizeTrial | None:
        """The largest size found to fit; None when the smallest does not."""
        first = self.at(1, must_read=True)
        if not first.fits:
            return None
        low, high = self._bracket(first, self.at(2))
        while high - low > 1 and self._may_try():
            self.part = 1 / (high - low).bit_length()  # so many searches are left at most
            middle = (low + high) // 2
            low, high = (middle, high) if self.at(middle).fits else (low, middle)
        return self.tried[low]

    def _bracket(self, first: SizeTrial, second: SizeTrial) -> tuple[int, int]:
        """(a size that fits, a larger one that does not; above all sizes where none is known)."""
        if not second.fits:
            return 1, 2
        assert first.question is not None and second.question is not None
        if first.question.lowered.problem.size.tolist() == second.question.lowered.problem.size.tolist():
            raise BadRequest.one(
                "does_not_grow",
                "grow",
                f"{self.asked.grow!r}, at 1 as large as at 2",
                "something that changes sizes",
                "grow a dimension the model has left open",
            )
        low, high = 2, MAX_SIZE + 1
        for size in self._foretold(first.question, second.question):
            if low < size < high and self._may_try():
                low, high = (size, high) if self.at(size).fits else (low, size)
        while high > MAX_SIZE and low < MAX_SIZE and self._may_try():
            size = min(2 * low, MAX_SIZE)
            low, high = (size, high) if self.at(size).fits else (low, size)
        return low, high

    def _foretold(self, one: Formulation, two: Formulation) -> list[int]:
        """Sizes where, along straight lines, the step as given just fits, and where the bound on peaks does not."""
        budget = one.goal.budget_bytes or 0
        given = _crossing(one.baseline.score.peak_bytes, two.baseline.score.peak_bytes, budget)
        least = _crossing(one.bound.peak_bytes, two.bound.peak_bytes, budget)
        return [given, least + 1]

    def _may_try(self) -> bool:
        return len(self.tried) < MAX_TRIALS and not self.stages.cancel.is_set()

    def request_at(self, size: int) -> Request:
        """The request with that length bound."""
        request = self.asked.request
        if self.dimension is None:
            return replace(request, batch=size)
        return replace(request, dims={**request.dims, self.dimension: size})

    def final_request(self, best: SizeTrial) -> Request:
        """What the plan at the largest size is asked with, as if it had been asked alone."""
        request, left = self.request_at(best.size), self._seconds_left()
        given = {name: sent for name, sent in request.given.items() if name not in ("grow", "max_overhead")}
        given |= {"batch": best.size} if self.dimension is None else {"dims": dict(request.dims)}
        iterations = None if request.iterations is None else max(1, round(request.iterations * (1 - SIZE_PART)))
        return replace(request, given=given, search_seconds=max(1e-3, left), iterations=iterations)

    def at(self, size: int, must_read: bool = False) -> SizeTrial:
        """What becomes of that size, remembered."""
        if size not in self.tried:
            self.tried[size] = self._tried(size, must_read)
        return self.tried[size]

    def _tried(self, size: int, must_read: bool) -> SizeTrial:
        request = self.request_at(size)
        try:
            with cancellation_scope(self.stages.cancel, GRACE_CHECKS):
                source, _ = training_graph(self.model, load_model(self.model, request, self.limits), request)
            question = self.stages.formulate(source, request)
        except CancellationError as stop:
            if must_read:
                raise
            return SizeTrial(size, False, NOT_FOUND, str(stop))
        except BadGraph as error:
            if must_read:
                raise _about_growing(error) from None
            return SizeTrial(size, False, REFUSED, str(error.findings[0]) if error.findings else str(error))
        budget = question.goal.budget_bytes or 0
        if question.baseline.score.peak_bytes <= budget:
            return self._checked(size, question, question.evaluated(question.baseline.order, "as_given"))
        if question.bound.peak_bytes > budget:
            said = f"no plan peaks below {question.count.counted(question.bound.peak_bytes)} bytes"
            return SizeTrial(size, False, PROVEN, said, question)
        question = self.stages.bounded(question)
        if question.bound.cost > self._most_ticks(question):
            said = f"no plan within the memory takes less than {_percent(question, question.bound.cost)} more time"
            return SizeTrial(size, False, PROVEN, said, question)
        return self._planned(size, question)

    def _planned(self, size: int, question: Formulation) -> SizeTrial:
        """The size with the best plan found: one of another size replayed, or a new one."""
        problem = question.lowered.problem
        seeds = [
            Candidate(known.plan.order, known.plan.planner, known.plan.choices)
            for known in self.tried.values()
            if known.plan is not None
            and known.question is not None
            and same_dataflow(problem, known.question.lowered.problem)
        ]
        for seed in seeds:
            plan = question.evaluated(seed.order, seed.planner, seed.choices)
            if self._is_enough(question, plan):
                return self._checked(size, question, plan)
        plan, planner = question.baseline, self.asked.request.planner
        for name in [QUICK_PLANNER, planner] if planner == "auto" else [planner]:
            found = self._search(question, name, seeds)
            plan = question.evaluated(found.order, found.planner, found.choices)
            if self._is_enough(question, plan):
                return self._checked(size, question, plan)
            seeds = [*seeds, found]
        over = plan.score.bytes_over_budget
        short = f"{over} bytes too many" if over else f"{_percent(question, plan.score.cost)} more time"
        return SizeTrial(size, False, NOT_FOUND, f"the best plan found takes {short}", question, plan)

    def _search(self, question: Formulation, planner: str, seeds: Sequence[Candidate]) -> Candidate:
        """The planner's best in an equal part of what is left, or the first that is enough."""
        goal, enough = question.goal, EarlyStop(self.stages.cancel)
        left = self._seconds_left() - (1 - SIZE_PART) * goal.seconds
        iterations = None if goal.iterations is None else max(1, int(goal.iterations * SIZE_PART * self.part))
        goal = replace(goal, seconds=max(MIN_SEARCH_SECONDS, left * self.part), iterations=iterations)

        def improved(_: Order, score: Score) -> None:
            if score.bytes_over_budget == 0 and score.cost <= self._most_ticks(question):
                enough.set()

        searched = replace(question, goal=goal)
        monitor = searched.monitor(improved, enough)
        found = lexicographic.search(question.lowered.problem, goal, planner, monitor, seeds)
        self.stages.stopped_by_clock |= monitor.stopped_by_clock
        return found

    def _checked(self, size: int, question: Formulation, plan: Plan) -> SizeTrial:
        """A size that fits, its plan accepted by the independent checker."""
        check(question.lowered.problem, question.goal, plan, names=question.names())
        now = time.monotonic() - self.stages.started
        extra, peak = overhead(plan.score.cost, question.baseline_cost), question.count.counted(plan.score.peak_bytes)
        self.stages.tell(Progress("plan", now, extra, peak))
        return SizeTrial(size, True, "", "", question, plan)

    def _is_enough(self, question: Formulation, plan: Plan) -> bool:
        return plan.score.bytes_over_budget == 0 and plan.score.cost <= self._most_ticks(question)

    def _most_ticks(self, question: Formulation) -> int:
        return int(question.baseline_cost * (1 + self.asked.max_overhead))

    def _seconds_left(self) -> float:
        return self.asked.request.search_seconds - (time.monotonic() - self.started)


def _about_growing(error: BadGraph) -> Exception:
    """What a model that cannot be read at the smallest size is told: the batch is what was to grow."""
    if [finding.path for finding in error.findings] != ["batch"]:
        return error
    return BadRequest.one(
        "cannot_grow",
        "grow",
        "a model none of whose inputs has a leading length",
        "inputs with shapes",
        "declare shape and dtype of the inputs, or grow a dimension by its name",
    )


def _percent(question: Formulation, cost: int) -> str:
    return f"{100 * overhead(cost, question.baseline_cost):.2f}%"


def _crossing(at_one: int, at_two: int, limit: int) -> int:
    """The largest size at which a line through two is at most the limit."""
    slope = at_two - at_one
    return MAX_SIZE if slope <= 0 else min(MAX_SIZE, 1 + max(0, (limit - at_one) // slope))


def _document(
    asked: FitRequest,
    dimension: str | None,
    sizes: SizeSearch,
    best: SizeTrial | None,
    outcome: Outcome | None,
    stages: SolveStages,
) -> dict[str, Any]:
    """The answer as `remat-fit/1`."""
    known = sizes.tried[min(sizes.tried)].question
    size = 0 if best is None else best.size
    larger = sorted(tried for tried in sizes.tried if tried > size)
    after = sizes.tried[larger[0]].row() if larger else None
    report = {} if outcome is None else outcome.report
    return {
        "format": FORMAT,
        "model": report.get("model"),
        "grow": asked.grow,
        "dimension": dimension,
        "size": None if best is None else best.size,
        "budget_bytes": None if known is None else known.budget_bytes,
        "max_overhead": asked.max_overhead,
        "next": after,
        "tried": [sizes.tried[tried].row() for tried in sorted(sizes.tried)],
        "plan": report.get("plan"),
        "checked": True,
        "warnings": list(report.get("warnings", ())),
        "stopped": stages.cancel.is_set(),
        "elapsed": {"sizes": round(stages.elapsed["plan"], 6), **report.get("elapsed", {})},
    }
