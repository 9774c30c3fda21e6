"""Search for the best plan within each of several budgets; see `curve.py`."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from planner.formulation.formulation import Formulation, held_budget
from planner.pipeline.arena_repair import RESERVED_PART
from planner.pipeline.solve_stages import SolveStages
from planner.problem.plan import Candidate, Plan, Score
from planner.search import improvers, lexicographic
from planner.search.scores import score_of

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
