"""Trade-off curves: the least time within each of several budgets, with the proven bound beside it.

budgets ──▶ tightest ──plan──▶ looser ──plan──▶ ... ──▶ loosest      what fits a budget fits every looser one
 bounds ◀── tightest ◀─bound── looser ◀─bound── ... ◀── loosest      what a budget costs, every tighter one costs

Reading, differentiating and lowering happen once. Every plan found is a seed of the searches after it, and in the
end each budget gets the best of all plans: time never rises with the budget, nor does the bound. A point above the
line between its neighbours may be right, but is where a better plan is likeliest: such are searched again.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graph.formats.native.writer import document
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.formulation import execution_check
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.metrics import overhead
from planner.formulation.training_graph import load_model, model_identity, training_graph
from planner.lowering.realize import node_sequence, realize
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.problem.plan import Order, Plan, Score
from planner.report.report import ReportData, build_report, plan_metrics
from planner.request.budget import Budget
from planner.request.curve_and_fit_request import CurveRequest
from planner.request.plan_request import Request
from planner.search import lexicographic, portfolio
from planner.search.portfolio import Candidate
from planner.verify.checker import check

FORMAT = "remat-curve/1"
LOWEST_PEAK = Budget(bytes=0)
#: Before `auto` searches at all, this planner has a look at every budget in this part of the time.
QUICK_PLANNER, QUICK_PART = "greedy", 0.3
#: The part of the search in which every budget has its turn, where there are neighbours; so many are searched again.
FIRST_ROUND_PART, EXTRA_SEARCHES = 0.75, 3


@dataclass(frozen=True, eq=False, slots=True)
class CurveResult:
    """What comes out: the document `remat-curve/1`, and the outcome of each of its points."""

    document: dict[str, Any]
    outcomes: tuple[Outcome, ...]

    @property
    def exit_code(self) -> int:
        """0 done, 1 a budget was not reached, 3 stopped, 4 our own fault."""
        return max((outcome.exit_code for outcome in self.outcomes), default=0)


def curve(
    model: bytes | Graph,
    asked: CurveRequest,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
) -> CurveResult:
    """Plan a model at every budget. Raises BadGraph, BadRequest; an unreachable budget is a result, not an error.

    A set `cancel` ends the searches; points not searched yet get the best plan found by then. Raises Stopped where
    it comes so early that there is none.
    """
    stages, request = SolveStages(on_progress, cancel or threading.Event()), asked.request
    with gc_paused():
        with stages("read"):
            forward = load_model(model, request, limits)
        with stages("differentiate"):
            source, notes = training_graph(model, forward, request)
        with stages("plan"):
            base = stages.formulate(source, replace(request, budget=LOWEST_PEAK))
            tracing = CurveSearch(base, request.planner, stages)
            points = tracing.points(_in_bytes(asked, tracing))
            mirrored = portfolio.search(base.lowered.problem, base.goal, "mirror", base.monitor())
        with stages("layout"):
            plans = [_placed(point, request.layout, stages.cancel) for point in points]
        with stages("rewrite"):
            made = [_realized(point.question, plan) for point, plan in zip(points, plans, strict=True)]
    with stages("execute"):
        executed = [
            execution_check.run_and_compare(
                planned, request, partial(_cut, model, forward, request, limits, planned), stages.cancel
            )
            for planned in made
        ]
    sections = {"source": document(source)} if "source" in request.returns else {}
    outcomes = []
    for budget, given, planned, ran in zip(asked.budgets, asked.given, made, executed, strict=True):
        fields = {name: sent for name, sent in request.given.items() if name != "budgets"}
        one = replace(request, budget=budget, given={**fields, "budget": given})
        facts = ReportData(
            planned.question,
            planned.plan,
            planned.runs,
            planned.question.evaluated(mirrored.order, "mirror"),
            ran,
            (*notes, *base.warnings, *stages.notes),
            stages.elapsed,
            stages.stopped_by_clock,
            stages.cancel.is_set(),
            one,
        )
        graph = {"graph": document(planned.rewritten)} if "graph" in request.returns else {}
        report = build_report(facts, model_identity(source), sections | graph)
        outcomes.append(Outcome(report, source, planned.rewritten, planned.plan))
    return CurveResult(_document(asked, base, source, notes, outcomes, stages), tuple(outcomes))


def _in_bytes(asked: CurveRequest, tracing: CurveSearch) -> list[int]:
    """The budgets in reported bytes; shares of the reducible part need the lowest peak first."""
    count = tracing.base.count
    whole, floor = count.counted(tracing.base.baseline.score.peak_bytes), 0
    if asked.request.fraction_of == "reducible" and any(budget.fraction is not None for budget in asked.budgets):
        floor = count.counted(tracing.lowest(1 / (len(asked.budgets) + 1)))
    return [budget.of(whole, floor) for budget in asked.budgets]


@dataclass(frozen=True, eq=False, slots=True)
class BudgetPoint:
    """One budget: the question with its bound, and the best plan known."""

    question: Formulation
    plan: Plan


class CurveSearch:
    """One problem under several budgets, and every plan found so far."""

    def __init__(self, base: Formulation, planner: str, stages: SolveStages):
        self.base, self.planner, self.stages = base, planner, stages
        self.started, self.iterations = time.monotonic(), base.goal.iterations
        self.found: list[Candidate] = []
        self.measured: list[tuple[int, int]] = []  # ticks and peak of each
        self.peak_searched: set[str] = set()  # planners that have looked for the lowest peak

    def points(self, budgets: Sequence[int]) -> list[BudgetPoint]:
        """A point per budget in reported bytes, in their order; searched tightest first."""
        tightest_first = sorted(range(len(budgets)), key=lambda i: budgets[i])
        questions = self._bounded([self._within(budgets[i]) for i in tightest_first], self.stages.bounded)
        if self.planner == "auto":
            for k, question in enumerate(questions):  # half of it for the tightest: its plan is within all others
                self._search(question, QUICK_PLANNER, QUICK_PART / 2 / (max(1, len(questions) - 1) if k else 1))
        again = EXTRA_SEARCHES if len(questions) > 2 else 0
        turns = FIRST_ROUND_PART if again else 1.0
        for k, question in enumerate(questions):
            self._search(question, self.planner, turns / (len(questions) - turns * k))
        for k in range(again):
            if (worst := self._worst(questions)) is not None:
                goal = replace(worst.goal, seed=worst.goal.seed + k + 1)
                self._search(replace(worst, goal=goal), self.planner, 1 / (again - k))
        questions = self._bounded(questions, partial(self._tightened, seconds=self.base.goal.seconds / len(questions)))
        points = [BudgetPoint(question, self._plan(question)) for question in questions]
        return [points[tightest_first.index(i)] for i in range(len(budgets))]

    def lowest(self, part: float) -> int:
        """The lowest peak found in that part of the time, in the planner's bytes; its plan is a seed of all."""
        question = replace(self.base, goal=replace(self.base.goal, budget_bytes=0))
        self._search(question, self.planner, part)
        return self._best(question)[0].peak_bytes

    def _within(self, budget_bytes: int) -> Formulation:
        held = max(0, self.base.count.held(budget_bytes)) if budget_bytes else 0
        return replace(self.base, goal=replace(self.base.goal, budget_bytes=held), budget_bytes=budget_bytes)

    def _bounded(
        self, questions: Sequence[Formulation], better: Callable[[Formulation], Formulation]
    ) -> list[Formulation]:
        """The questions, tightest first, with better bounds that never fall as the budget does."""
        bounded: list[Formulation] = []
        for question in map(better, reversed(questions)):
            if question.goal.budget_bytes and bounded and bounded[-1].bound.cost > question.bound.cost:
                question = replace(question, bound=bounded[-1].bound)
            bounded.append(question)
        return bounded[::-1]

    def _tightened(self, question: Formulation, seconds: float) -> Formulation:
        """The question with the bound of several moments, as far as so long a search has it, where there is a gap."""
        short = replace(question, goal=replace(question.goal, seconds=seconds))
        return replace(self.stages.with_tight_bound(short, self._plan(question)), goal=question.goal)

    def _plan(self, question: Formulation) -> Plan:
        found = self._best(question)[1]
        return question.evaluated(found.order, found.planner, found.choices)

    def _worst(self, questions: Sequence[Formulation]) -> Formulation | None:
        """What is met furthest above the line between its neighbours, or if none is, above its bound; None: no gap."""
        found = [(question, self._best(question)[0]) for question in questions]
        met = [(q, score.cost, q.goal.budget_bytes or 0) for q, score in found if not score.bytes_over_budget]
        above = [0] * len(met)
        for k, ((_, dear, low), (_, cost, here), (_, cheap, high)) in enumerate(
            zip(met, met[1:], met[2:], strict=False)
        ):
            above[k + 1] = max(0, (cost - cheap) - (dear - cheap) * (high - here) // max(1, high - low))
        gaps = [(rise, cost - q.bound.cost, k) for k, (rise, (q, cost, _)) in enumerate(zip(above, met, strict=True))]
        worst = max((row for row in gaps if row[1] > 0), default=None)
        return None if worst is None else met[worst[2]][0]

    def _search(self, question: Formulation, planner: str, part: float) -> None:
        """Look for a plan in that part of the time that is left, unless one is known that none beats."""
        if self._is_solved(question) or (self._is_hopeless(question) and planner in self.peak_searched):
            return
        if self._is_hopeless(question):
            self.peak_searched.add(planner)
        goal, seeds = question.goal, [self._best(question)[1]] if self.found else []
        seconds = max(0.0, self.base.goal.seconds - (time.monotonic() - self.started)) * part
        iterations = None if self.iterations is None else max(1, int(self.iterations * part))
        question = replace(question, goal=replace(goal, seconds=seconds, iterations=iterations))

        def improved(_: Order, score: Score) -> None:
            extra = overhead(score.cost, question.baseline_cost)
            floor = overhead(question.bound.cost, question.baseline_cost)
            peak = question.count.counted(score.peak_bytes)
            elapsed = time.monotonic() - self.stages.started
            self.stages.tell(Progress("plan", elapsed, extra, peak, floor, extra - floor))

        monitor = question.monitor(improved, self.stages.cancel)
        problem = question.lowered.problem
        found = lexicographic.search(problem, question.goal, planner, monitor, seeds)
        self.found.append(found)
        score = portfolio.goal_score(problem, replace(goal, budget_bytes=0), found.order, found.choices)
        self.measured.append((score.cost, score.peak_bytes))
        if self.iterations is not None:
            self.iterations = max(0, self.iterations - monitor.calls)
        if self.planner != "auto":
            self.stages.notes = list(dict.fromkeys([*self.stages.notes, *monitor.notes]))
        self.stages.stopped_by_clock |= monitor.stopped_by_clock

    def _is_solved(self, question: Formulation) -> bool:
        """A plan found before is within the budget and takes no more time than the bound."""
        if not question.goal.budget_bytes or not self.found:
            return False
        score = self._best(question)[0]
        return score.bytes_over_budget == 0 and score.cost <= question.bound.cost

    def _is_hopeless(self, question: Formulation) -> bool:
        """No plan is within the budget, so that one search for the lowest peak serves all such budgets."""
        return question.bound.peak_bytes > (question.goal.budget_bytes or 0)

    def _best(self, question: Formulation) -> tuple[Score, Candidate]:
        """The best of all plans found; of equals the first."""
        budget = question.goal.budget_bytes or 0
        scores = [Score(max(0, peak - budget), cost, peak) for cost, peak in self.measured]
        best = min(range(len(scores)), key=lambda i: scores[i])
        return scores[best], self.found[best]


def _placed(point: BudgetPoint, layout: str, cancel: threading.Event) -> Plan:
    """The point's plan with its addresses, checked."""
    question, plan = point.question, point.question.placed(point.plan, layout, cancel)
    check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
    return plan


def _realized(question: Formulation, plan: Plan) -> execution_check.RealizedPlan:
    runs = node_sequence(question.lowered, plan)
    return execution_check.RealizedPlan(question, plan, runs, realize(runs))


def _cut(
    model: bytes | Graph,
    forward: Graph,
    request: Request,
    limits: Limits | None,
    planned: execution_check.RealizedPlan,
    batch: int,
) -> Formulation | None:
    """The question of a point about the model with its batch cut down, for a run that is short enough."""
    return with_smaller_batch(model, forward, request, limits, batch, planned.question.lowered.groups)


def _document(
    asked: CurveRequest,
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
            "bound_overhead": plan["bound"]["overhead"],
            "plan": plan,
        }
        for given, plan in zip(asked.given, plans, strict=True)
    ]
    return {
        "format": FORMAT,
        "model": model_identity(source),
        "runtime": asked.request.runtime,
        "device": asked.request.device if isinstance(asked.request.device, str) else dict(asked.request.device),
        "request": {**asked.request.given, "budgets": list(asked.given)},
        "baseline": plan_metrics(base, base.baseline),
        "points": points,
        "violations": violations(points),
        "checked": True,
        "warnings": [*notes, *base.warnings, *stages.notes],
        "elapsed": {stage: round(seconds, 6) for stage, seconds in stages.elapsed.items()},
    }


def violations(points: Sequence[Mapping[str, Any]]) -> int:
    """Pairs of points of which the looser takes more time, or misses a budget that the tighter one meets."""
    by_budget = sorted(points, key=lambda point: point["budget_bytes"])
    count = 0
    for tight, loose in itertools.combinations(by_budget, 2):
        if tight["peak_bytes"] > tight["budget_bytes"] or tight["budget_bytes"] == loose["budget_bytes"]:
            continue
        count += loose["peak_bytes"] > loose["budget_bytes"] or loose["overhead"] > tight["overhead"]
    return count
