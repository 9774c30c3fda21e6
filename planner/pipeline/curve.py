"""Trade-off curves: the least time found within each of several budgets, with the proven lower bound.

budgets ──▶ tightest ──plan──▶ looser ──plan──▶ ... ──▶ loosest      a plan within a budget fits every looser one
 bounds ◀── tightest ◀─bound── looser ◀─bound── ... ◀── loosest      a lower bound holds for every tighter budget

With `offload`, a second search adds copies to the host to each plan (`curve_copies.py`), as a second line.

Reading, differentiation and lowering happen once. Every plan found is a seed of the later searches, and each budget
gets the best of all plans: neither time nor bound rises with the budget. A point above the line between its neighbours
is where a better plan is most likely; such points are searched a second time.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graph.autodiff.objective import Objective
from graph.formats.native.identity import model_identity
from graph.formats.native.writer import document
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.formulation.execution_check import RealizedPlan, SourceRun, run_and_compare
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.formulation import Formulation
from planner.formulation.goal_of_request import whole_bytes
from planner.formulation.offloading import PLAIN_SHARE, without_copies
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.curve_copies import FoundPlan, copied_point, plans_with_copies
from planner.pipeline.curve_search import BudgetPoint, CurveSearch
from planner.pipeline.progress import Outcome, Progress
from planner.pipeline.solve_stages import SolveStages
from planner.problem.plan import Plan
from planner.report.report import baseline_metrics, build_report
from planner.request.budget import Budget
from planner.request.curve_and_fit_request import CurveRequest
from planner.request.plan_request import Request
from planner.search import portfolio

FORMAT = "remat-curve/1"
OVER_BUDGET = "over_budget"
LOWEST_PEAK = Budget(bytes=0)


@dataclass(frozen=True, eq=False, slots=True)
class CurveResult:
    """The document `remat-curve/1`, and the outcome of each of its points."""

    document: dict[str, Any]
    outcomes: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        """0 done, 1 a budget was not reached, 3 stopped, 4 internal error."""
        return max((outcome.exit_code for outcome in self.outcomes), default=0)


def curve(
    model: bytes | Graph,
    curve_request: CurveRequest,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
) -> CurveResult:
    """Plan a model at every budget. An unreachable budget is a result, not an error.

    Setting `cancel` ends the searches; points not searched by then get the best plan found so far.
    Raises BadGraph, BadRequest; CancellationError if `cancel` is set before the first plan.
    """
    stages = SolveStages(on_progress, cancel or threading.Event())
    request = without_copies(curve_request.request)
    with gc_paused():
        with stages("read"):
            forward = load_model(model, request, limits)
        with stages("differentiate"):
            objectives: list[Objective] = []
            source, notes = training_graph(model, forward, request, objectives=objectives)
        with stages("plan"):
            base = stages.formulate(source, replace(request, budget=LOWEST_PEAK))
            base = replace(base, objective=next(iter(objectives), None))
            seconds = base.goal.seconds
            if curve_request.request.offload:
                base = replace(base, goal=replace(base.goal, seconds=PLAIN_SHARE * seconds))
            search = CurveSearch(base, request.planner, stages)
            points = search.points(_in_bytes(curve_request, search))
            mirrored = portfolio.search(base.lowered.problem, base.goal, "mirror", base.monitor())
        with stages("layout"):
            plans = _placed(points, request, stages, search.started + base.goal.seconds)
        copied: list[FoundPlan | None] = [None] * len(plans)
        if curve_request.request.offload:
            with stages.resumed("plan"):
                plain = [(point.formulation, plan) for point, plan in zip(points, plans, strict=True)]
                copied = plans_with_copies(plain, curve_request.request, stages, search.started + seconds)
        with stages("rewrite"):
            realized = [
                RealizedPlan.from_plan(point.formulation, plan) for point, plan in zip(points, plans, strict=True)
            ]
    with stages("execute"):
        smaller = partial(with_smaller_batch, model, forward, request, limits)
        source_runs: dict[int, SourceRun] = {}  # the points have one source
        executed = [
            run_and_compare(
                each, request, partial(smaller, groups=each.formulation.lowered.groups), stages.cancel, source_runs
            )
            for each in realized
        ]
    sections = {"source": document(source)} if "source" in request.returns else {}
    warnings = (*notes, *base.warnings, *stages.notes)
    outcomes = []
    for budget, given, each, result in zip(curve_request.budgets, curve_request.given, realized, executed, strict=True):
        fields = {name: value for name, value in request.given.items() if name != "budgets"}
        point_request = replace(request, budget=budget, given={**fields, "budget": given})
        reference = each.formulation.evaluated(mirrored.order, "mirror")
        data = stages.report_data(each, reference, result, warnings, point_request)
        graph = {"graph": document(each.rewritten)} if "graph" in request.returns else {}
        report = build_report(data, model_identity(source), sections | graph)
        outcomes.append(Outcome(report, source, each.runs, each.plan))
    found = _document(curve_request, base, source, notes, outcomes, stages)
    if curve_request.request.offload:
        for point, with_copies in zip(found["points"], copied, strict=True):
            point["copied"] = copied_point(with_copies)
    return CurveResult(found, tuple(outcomes))


def _in_bytes(curve_request: CurveRequest, search: CurveSearch) -> list[int]:
    """Budgets in reported bytes; shares of the reducible part need a search for the lowest peak first."""
    floor, shares = 0, [budget for budget in curve_request.budgets if budget.fraction is not None]
    if shares and curve_request.request.fraction_of == "reducible":
        floor = search.lowest(1 / (len(curve_request.budgets) + 1))
    return [budget.of(whole_bytes(search.base, budget), floor) for budget in curve_request.budgets]


def _placed(points: Sequence[BudgetPoint], request: Request, stages: SolveStages, until: float) -> list[Plan]:
    """Plans of the points with addresses, checked. Raises IllegalPlan.

    Tightest budget first, with equal shares of the time left to repair those whose addresses exceed the budget; a plan
    whose addresses fit a tighter budget is a candidate for every looser one.
    """
    plans: dict[int, Plan] = {}
    tightest_first = sorted(range(len(points)), key=lambda k: points[k].formulation.budget_bytes or 0)
    for done, k in enumerate(tightest_first):
        formulation, left = points[k].formulation, max(0.0, until - time.monotonic())
        part_end = time.monotonic() + left / (len(points) - done)
        placed, notes = stages.placed(formulation, points[k].plan, request, until=part_end)
        stages.notes += notes
        rivals = [replace(plan, score=formulation.plan_of(plan.candidate).score) for plan in plans.values()]
        plans[k] = min((placed, *rivals), key=lambda plan: (formulation.bytes_over_budget(plan), plan.score))
        formulation.check(plans[k])
    return [plans[k] for k in range(len(points))]


def _document(
    curve_request: CurveRequest,
    base: Formulation,
    source: Graph,
    notes: Sequence[str],
    outcomes: Sequence[Outcome],
    stages: SolveStages,
) -> dict[str, Any]:
    """The curve as `remat-curve/1`."""
    plans = [outcome.report["plan"] for outcome in outcomes]
    points = [
        {
            "budget": given,
            "budget_bytes": plan["budget_bytes"],
            "status": plan["status"],
            "overhead": plan["overhead"],
            "peak_bytes": plan["peak_bytes"],
            "bound_overhead": bound,
            "bound_peak_bytes": plan["bound"]["peak_bytes"],
            "needed_bytes": plan["needed_bytes"],
            "plan": plan,
        }
        for given, plan, bound in zip(curve_request.given, plans, bound_overheads(plans), strict=True)
    ]
    return {
        "format": FORMAT,
        "model": model_identity(source),
        "runtime": curve_request.request.runtime,
        "device": curve_request.request.device
        if isinstance(curve_request.request.device, str)
        else dict(curve_request.request.device),
        "request": {**curve_request.request.given, "budgets": list(curve_request.given)},
        "baseline": baseline_metrics(base),
        "points": points,
        "violations": violations(points),
        "checked": True,
        "warnings": [*notes, *base.warnings, *stages.notes],
        "elapsed": {stage: round(seconds, 6) for stage, seconds in stages.elapsed.items()},
    }


def bound_overheads(plans: Sequence[Mapping[str, Any]]) -> list[float]:
    """Lower bound on the overhead within each plan's budget; a bound for a looser budget holds too.

    The bound of a plan that is over its budget is the one for any budget, which is lower than those of looser budgets.
    """
    loosest_first = sorted(range(len(plans)), key=lambda i: -plans[i]["budget_bytes"])
    highest = itertools.accumulate((plans[i]["bound"]["overhead"] for i in loosest_first), max)
    bounds = dict(zip(loosest_first, highest, strict=True))
    return [bounds[i] for i in range(len(plans))]


def violations(points: Sequence[Mapping[str, Any]]) -> int:
    """Pairs of points whose looser budget takes more time, or is missed while the tighter one is met."""
    by_budget = sorted(points, key=lambda point: point["budget_bytes"])
    count = 0
    for tight, loose in itertools.combinations(by_budget, 2):
        if tight["status"] == OVER_BUDGET or tight["budget_bytes"] == loose["budget_bytes"]:
            continue
        count += loose["status"] == OVER_BUDGET or loose["overhead"] > tight["overhead"]
    return count
