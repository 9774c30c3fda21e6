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
import math
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
from planner.formulation.formulation import Formulation, held_budget
from planner.formulation.goal_of_request import whole_bytes
from planner.formulation.offloading import PLAIN_SHARE, without_copies
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.arena_repair import RESERVED_PART
from planner.pipeline.curve_copies import FoundPlan, copied_point, plans_with_copies
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.problem.plan import Candidate, Plan, Score
from planner.report.report import baseline_metrics, build_report
from planner.request.budget import Budget
from planner.request.curve_and_fit_request import CurveRequest
from planner.request.plan_request import Request
from planner.search import improvers, lexicographic, portfolio
from planner.search.scores import score_of

FORMAT = "remat-curve/1"
OVER_BUDGET = "over_budget"
LOWEST_PEAK = Budget(bytes=0)
#: Before `auto`, these planners search every budget, each in this share of the time; under an iteration limit the first
#: alone.
QUICK_PLANNERS = {"greedy": 0.3, "min_cut": 0.1}
#: Share of the search for the first round over all budgets (with 3 or more budgets); extra searches after it.
FIRST_ROUND_PART, EXTRA_SEARCHES = 0.75, 3
#: Planner of the first of these: where a plan of `auto` is far from its bound, integer programs had too little time.
EXTRA_PLANNER = "neighbourhood"
#: Share of the time for the multi-step bounds, after the searches.
BOUND_PART = 0.25


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


@dataclass(frozen=True, eq=False, slots=True)
class BudgetPoint:
    """One budget: the formulation with its bound, and the best plan known."""

    formulation: Formulation
    plan: Plan


class CurveSearch:
    """Search over one problem under several budgets, with every plan found so far."""

    def __init__(self, base: Formulation, planner: str, stages: SolveStages):
        self.base, self.planner, self.stages = base, planner, stages
        self.started, self.iterations = time.monotonic(), base.goal.iterations
        stages.start_clock(base)
        # The rest of the time is for bounds, then for addresses.
        self.seconds = base.goal.seconds * (1 - BOUND_PART - (RESERVED_PART if base.places else 0))
        self.found: list[Candidate] = []
        self.measured: list[tuple[int, int]] = []  # (ticks, peak bytes as searched) of each plan found
        self.peak_searched: set[str] = set()  # planners that have searched for the lowest peak

    def points(self, budgets: Sequence[int]) -> list[BudgetPoint]:
        """One point for each budget (reported bytes), in the given order; searched tightest first."""
        tightest_first = sorted(range(len(budgets)), key=lambda i: budgets[i])
        formulations = self._bounded([self._within(budgets[i]) for i in tightest_first], self.stages.bounded)
        if self.planner == "auto":
            # Half of the share for the tightest budget: its plan fits all other budgets.
            for name, share in self._quick_planners():
                for k, formulation in enumerate(formulations):
                    self._search(formulation, name, share / 2 / (max(1, len(formulations) - 1) if k else 1))
        extra_searches = EXTRA_SEARCHES if len(formulations) > 2 else 0
        first_round = FIRST_ROUND_PART if extra_searches else 1.0
        for k, formulation in enumerate(formulations):
            self._search(formulation, self.planner, first_round / (len(formulations) - first_round * k))
        for k in range(extra_searches):
            if (worst := self._worst(formulations)) is not None:
                goal = replace(worst.goal, seed=worst.goal.seed + k + 1)
                planner = EXTRA_PLANNER if not k and self._has_one_search_by_clock(worst) else self.planner
                self._search(replace(worst, goal=goal), planner, 1 / (extra_searches - k))
        waiting = itertools.count(len(formulations), -1)
        formulations = self._bounded(formulations, lambda one: self._tightened(one, len(formulations), next(waiting)))
        points = [BudgetPoint(formulation, self._plan(formulation)) for formulation in formulations]
        return [points[tightest_first.index(i)] for i in range(len(budgets))]

    def _has_one_search_by_clock(self, formulation: Formulation) -> bool:
        """Whether `auto` searches by the clock, without alternatives."""
        return self.planner == "auto" and self.iterations is None and not len(formulation.lowered.problem.choices)

    def _quick_planners(self) -> list[tuple[str, float]]:
        """Planners before `auto`, each with its share of the time."""
        if self.iterations is not None:
            return list(QUICK_PLANNERS.items())[:1]
        problem = self.base.lowered.problem
        return [row for row in QUICK_PLANNERS.items() if not improvers.is_too_slow(problem, row[0])]

    def lowest(self, part: float) -> int:
        """Lowest peak found in `part` of the time, in reported bytes; its plan becomes a seed."""
        formulation = replace(self.base, goal=replace(self.base.goal, budget_bytes=0))
        self._search(formulation, self.planner, part)
        return formulation.in_arena_bytes().count.counted(self._best(formulation)[0].peak_bytes)

    def _within(self, budget_bytes: int) -> Formulation:
        held = held_budget(self.base.count, budget_bytes) if budget_bytes else 0
        return replace(self.base, goal=replace(self.base.goal, budget_bytes=held), budget_bytes=budget_bytes)

    def _bounded(
        self, formulations: Sequence[Formulation], better: Callable[[Formulation], Formulation]
    ) -> list[Formulation]:
        """Formulations, tightest first, with tighter bounds that never fall as the budget falls."""
        bounded: list[Formulation] = []
        for formulation in map(better, reversed(formulations)):
            if formulation.goal.budget_bytes and bounded and bounded[-1].bound.cost > formulation.bound.cost:
                formulation = replace(formulation, bound=bounded[-1].bound)
            bounded.append(formulation)
        return bounded[::-1]

    def _tightened(self, formulation: Formulation, points: int, waiting: int) -> Formulation:
        """Add the multi-step lower bound if the best plan leaves a gap; `waiting` of the points have none yet."""
        goal, plan, until = formulation.goal, self._plan(formulation), math.inf
        if goal.iterations is None:
            left = self.started + self.seconds + BOUND_PART * goal.seconds - time.monotonic()
            until = time.monotonic() + max(0.0, left) / waiting
        iterations = None if goal.iterations is None else goal.iterations // points
        short = replace(formulation, goal=replace(goal, seconds=goal.seconds / points, iterations=iterations))
        return replace(self.stages.with_tight_bound(short, plan, until), goal=goal)

    def _plan(self, formulation: Formulation) -> Plan:
        return formulation.plan_of(self._best(formulation)[1])

    def _worst(self, formulations: Sequence[Formulation]) -> Formulation | None:
        """Reached budget furthest above the line between its neighbours, else above its bound; None without a gap.

        The tightest has no line: there, by how much its gap to the bound exceeds that of the next budget.
        """
        scored = [(formulation, self._best(formulation)[0]) for formulation in formulations]
        reached = [(q, score.cost, q.goal.budget_bytes or 0) for q, score in scored if not score.bytes_over_budget]
        gaps = [cost - q.bound.cost for q, cost, _ in reached]
        above = [max(0, gaps[0] - gaps[1]), *[0] * (len(gaps) - 1)] if len(gaps) > 1 else [0] * len(gaps)
        for k, ((_, cost_below, low), (_, cost, here), (_, cost_above, high)) in enumerate(
            zip(reached, reached[1:], reached[2:], strict=False)
        ):
            above[k + 1] = max(0, (cost - cost_above) - (cost_below - cost_above) * (high - here) // max(1, high - low))
        worst = max((row for row in zip(above, gaps, range(len(gaps)), strict=True) if row[1] > 0), default=None)
        return None if worst is None else reached[worst[2]][0]

    def _search(self, formulation: Formulation, planner: str, part: float) -> None:
        """Search in `part` of the time left, unless a known plan is optimal or the budget is proven unreachable."""
        if self._is_solved(formulation) or (self._is_hopeless(formulation) and planner in self.peak_searched):
            return
        if self._is_hopeless(formulation):
            self.peak_searched.add(planner)
        goal, seeds = formulation.goal, [self._best(formulation)[1]] if self.found else []
        seconds = max(0.0, self.seconds - (time.monotonic() - self.started)) * part
        iterations = None if self.iterations is None else max(1, int(self.iterations * part))
        searched = replace(formulation, goal=goal.limited(seconds, iterations)).in_arena_bytes()
        monitor = searched.monitor(partial(self.stages.emit_found, searched), self.stages.cancel)
        problem = searched.lowered.problem
        candidate = lexicographic.search(problem, searched.goal, planner, monitor, seeds)
        self.found.append(candidate)
        score = score_of(problem, replace(goal, budget_bytes=0), candidate)
        self.measured.append((score.cost, score.peak_bytes))
        if self.iterations is not None:
            self.iterations = max(0, self.iterations - monitor.calls)
        if self.planner != "auto":
            self.stages.notes = list(dict.fromkeys([*self.stages.notes, *monitor.notes]))
        self.stages.stopped_by_clock |= monitor.stopped_by_clock

    def _is_solved(self, formulation: Formulation) -> bool:
        """Whether a known plan is within the budget and takes no more time than the bound."""
        if not formulation.goal.budget_bytes or not self.found:
            return False
        score = self._best(formulation)[0]
        return score.bytes_over_budget == 0 and score.cost <= formulation.bound.cost

    def _is_hopeless(self, formulation: Formulation) -> bool:
        """Whether no plan is within the budget; one search for the lowest peak serves all such budgets."""
        return formulation.bound.peak_bytes > (formulation.goal.budget_bytes or 0)

    def _best(self, formulation: Formulation) -> tuple[Score, Candidate]:
        """(score, candidate) of the best plan found; of equals the first."""
        budget = formulation.in_arena_bytes().goal.budget_bytes or 0
        scores = [Score(max(0, peak - budget), cost, peak) for cost, peak in self.measured]
        best = min(range(len(scores)), key=lambda i: scores[i])
        return scores[best], self.found[best]


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
