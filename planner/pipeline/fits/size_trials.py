"""Trials of single sizes: baseline, lower bounds, plans of other sizes, then a search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from graph.cancellation import GRACE_CHECKS, CancellationError, cancellation_scope
from graph.errors import BadGraph
from graph.ir import Graph
from graph.limits import Limits
from planner.formulation.formulation import Formulation
from planner.formulation.offloading import rank
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.fits import copies
from planner.pipeline.fits.dimension import about_growing
from planner.pipeline.fits.size_clock import SIZE_PART, SizeClock
from planner.pipeline.solve_stages import SolveStages
from planner.problem import same_dataflow
from planner.problem.monitor import EarlyEnd, Monitor
from planner.problem.plan import Candidate, Goal, Order, Plan, Score
from planner.request.curve_and_fit_request import FitRequest
from planner.request.plan_request import Request

#: Least search time of one size, seconds.
MIN_SEARCH_SECONDS = 0.1
#: Planner tried before `auto`; often sufficient.
QUICK_PLANNER = "greedy"
PROVEN, NOT_FOUND, REFUSED = "proven", "not_found", "refused"


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


class SizeTrials:
    """The sizes of one model that were tried: `tried`, by size."""

    def __init__(
        self,
        model: bytes | Graph,
        fit_request: FitRequest,
        dimension: str | None,
        limits: Limits | None,
        stages: SolveStages,
    ):
        self.model, self.fit_request, self.dimension, self.limits = model, fit_request, dimension, limits
        self.stages, self.clock = stages, SizeClock(fit_request.request)
        self.tried: dict[int, SizeTrial] = {}

    def at(self, size: int, must_read: bool = False) -> SizeTrial:
        """Trial of a size, computed once."""
        if size not in self.tried:
            self.tried[size] = self._trial(size, must_read)
        return self.tried[size]

    def request_at(self, size: int) -> Request:
        """The request with the growing dimension bound to `size`."""
        request = self.fit_request.request
        if self.dimension is None:
            return replace(request, batch=size)
        return replace(request, dims={**request.dims, self.dimension: size})

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
                raise about_growing(error) from None
            return SizeTrial(size, False, REFUSED, str(error.findings[0]) if error.findings else str(error))
        self.clock.formulating += time.monotonic() - began
        may_copy, small_host = copies.may_copy(formulation, request, is_first=must_read)
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
            for found in copies.replayed(formulation, self._goal(formulation), fitting, request, self.stages.cancel):
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
            found = copies.planned(formulation, plan, goal, request, self.stages, self._is_within)
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
            until = time.monotonic() + max(MIN_SEARCH_SECONDS * self.clock.part, self.clock.trial_seconds())
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
        iterations = None if goal.iterations is None else max(1, int(goal.iterations * SIZE_PART * self.clock.part))
        return goal.limited(max(MIN_SEARCH_SECONDS, self.clock.trial_seconds()), iterations)

    def _layout_monitor(self, formulation: Formulation) -> Monitor:
        """Monitor of the addresses of one plan, with its share of the remaining time, which may be over."""
        return formulation.monitor(None, self.stages.cancel, self.clock.trial_seconds())

    def _is_within(self, formulation: Formulation, plan: Plan) -> bool:
        """Whether the plan with its addresses is acceptable."""
        return formulation.is_within_budget(plan) and self._is_acceptable(formulation, plan.score)

    def _is_acceptable(self, formulation: Formulation, score: Score) -> bool:
        return score.bytes_over_budget == 0 and score.cost <= self._max_ticks(formulation)

    def _max_ticks(self, formulation: Formulation) -> int:
        return int(formulation.baseline_cost * (1 + self.fit_request.max_overhead))


def _percent(formulation: Formulation, cost: int) -> str:
    return f"{formulation.overhead(cost):.2%}"
