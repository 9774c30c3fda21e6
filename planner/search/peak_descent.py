"""Lowest peak by the clock: every quick planner's order is lowered, then budgets fall step by step below the best peak.

    quick planners ──▶ lowered, all runs at one price ──▶ best peak P ──▶ P − 5% met ──▶ − 7.5% missed ──▶ − 3.8% ...

Ticks are no price where the peak alone counts: `greedy` would rather hold what is expensive to recompute, and end at a
higher peak. Budgets are for planners that have nothing to aim at otherwise (`revolve`, `moment`, `blocks`), and for
walks, which find less if every move must lower the peak than if they may exceed a limit on their way. An order within
such a budget ends a search at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.algorithms.exact import dijkstra
from planner.algorithms.greedy import planner as greedy
from planner.problem import Problem
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import CostBound, Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.search import improvers, portfolio
from planner.search.alternative_search import goal_for_choices
from planner.search.scores import judge_of, or_as_given, peak_floor, score_of
from planner.search.time_slices import TimeSlices

#: Quick planners whose orders are lowered, the quickest first, each with its share of the remaining time for these.
STARTS = (("evict", 0.3), ("segments", 0.2), ("revolve", 0.3), ("greedy", 1.0))
#: Share of the time for them, and of the rest for lowering their orders.
START_SHARE, LOWER_SHARE = 0.3, 0.5
#: Share of the time for the portfolio where it is used instead: for few tasks, with `exact`, and for very many.
PORTFOLIO_SHARE = 0.5
#: First step, maximum and minimum step of the budgets as shares of the best peak.
FIRST_STEP, MAX_STEP, MIN_STEP = 0.05, 0.2, 0.002
#: Factors of the next step after a budget that was met and after one that was missed.
MET, MISSED = 1.5, 0.5
#: Share of the remaining time of one search within a budget.
TRY_SHARE = 0.35
#: More ticks than any order takes, so that every order within the budget ends a search.
ANY_COST = 2**63 - 1


def lowest_peak(
    problem: Problem, goal: Goal, monitor: Monitor, seeds: Sequence[Candidate], least_bytes: int = 0
) -> Candidate:
    """The order with the lowest peak that all planners find together, within `goal.max_overhead` if that is given.

    Ends at a peak of `least_bytes` or at the proven lower bound. `monitor` judges by the goal and gets all better
    orders; its time limits the search, an iteration limit is not used.
    """
    return _PeakSearch(problem, goal, monitor, least_bytes).found_from(seeds)


class _PeakSearch:
    """One problem, and the order with the lowest peak so far."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, least_bytes: int):
        self.problem, self.goal, self.monitor, self.slices = problem, goal, monitor, TimeSlices(monitor)
        self.floor = max(peak_floor(problem, monitor.peak_bound), least_bytes)
        self.most_ticks = ANY_COST if goal.max_overhead is None else goal.cost_limit(problem)

    def found_from(self, seeds: Sequence[Candidate]) -> Candidate:
        """The best order found, no worse than the seeds."""
        if dijkstra.MAX_TASKS < self.problem.tasks <= improvers.MAX_SLOW_TASKS:
            starts = self.starts(seeds)
        else:
            part = self.slices.part(self.monitor.judge, PORTFOLIO_SHARE)
            part.on_progress = self.slices.report_best
            starts = [portfolio.search(self.problem, self.goal, "auto", part, seeds)]
            self.slices.absorb(part)
            if part.is_optimal:
                self.monitor.is_optimal = True
                return starts[0]
        found = self.lowered(starts)
        return self.descended(found)

    def score(self, candidate: Candidate) -> Score:
        return score_of(self.problem, self.goal, candidate)

    def report(self, order: Order, score: Score) -> None:
        """Progress of a search for another goal."""
        if score.cost <= self.most_ticks:
            self.slices.report_best(order, score._replace(bytes_over_budget=score.peak_bytes))

    def is_over(self, best: Score) -> bool:
        return best.bytes_over_budget <= self.floor or self.slices.is_over()

    def starts(self, seeds: Sequence[Candidate]) -> list[Candidate]:
        """The seeds and the orders of the quick planners, lowest peak first."""
        goal = self.goal if self.goal.max_overhead is not None else replace(self.goal, budget_bytes=self.floor)
        found = [or_as_given(self.problem, self.goal, None), *seeds]
        whole = self.slices.part(self.monitor.judge, START_SHARE)
        for name, share in STARTS:
            if min(self.score(each) for each in found).bytes_over_budget <= self.floor or whole.should_stop():
                break
            part = whole.child(judge_of(self.problem, goal), share)
            part.on_progress = self.report
            found.append(portfolio.search(self.problem, goal, name, part))
            whole.absorb(part)
        self.slices.absorb(whole)
        return sorted(found, key=self.score)

    def lowered(self, starts: Sequence[Candidate]) -> Candidate:
        """The best of the orders after closing gaps in each, with all runs at one price and then priced by ticks.

        Within `goal.max_overhead` ticks count, so that only the second price is used.
        """
        found, best = starts[0], self.score(starts[0])
        whole = self.slices.part(self.monitor.judge, LOWER_SHARE)
        tried = set[bytes]()
        for by_ticks in (False, True) if self.goal.max_overhead is None else (True,):
            for start in (found, *starts):
                if (key := start.order.tobytes() + bytes([by_ticks])) in tried:
                    continue
                tried.add(key)
                if best.bytes_over_budget <= self.floor or whole.should_stop():
                    break
                candidate = self.sunk(start, by_ticks, whole)
                if (score := self.score(candidate)) < best:
                    found, best = candidate, score
        self.slices.absorb(whole)
        return found

    def sunk(self, start: Candidate, by_ticks: bool, monitor: Monitor) -> Candidate:
        """The candidate with gaps closed until its peak falls no further."""
        columns = resolve_choices(self.problem, start.choices)
        goal = goal_for_choices(self.problem, self.goal, start.choices)
        part = monitor.child(judge_of(columns, goal))
        part.on_progress = self.slices.report_best
        part.offer(start.order)
        priced = columns if by_ticks else replace(columns, cost=np.zeros_like(columns.cost))
        limit = None if self.goal.max_overhead is None else self.most_ticks
        part.offer(greedy.sunk(priced, start.order, self.floor, part, limit))
        monitor.absorb(part)
        assert part.best is not None
        return replace(start, order=part.best) if part.best is not start.order else start

    def descended(self, found: Candidate) -> Candidate:
        """The best order of searches within lower and lower budgets."""
        step, best = FIRST_STEP, self.score(found)
        while step >= MIN_STEP and not self.is_over(best):
            budget = max(self.floor, int(best.peak_bytes * (1 - step)))
            candidate = self.within(budget, found)
            if (score := self.score(candidate)) < best:
                found, best = candidate, score
            step = min(MAX_STEP, step * MET) if best.peak_bytes <= budget else step * MISSED
        return found

    def within(self, budget: int, found: Candidate) -> Candidate:
        """The best order of the improvers within the budget, and after closing gaps in it if it is another one."""
        goal = replace(self.goal, budget_bytes=budget, max_overhead=None)
        part = self.slices.part(judge_of(self.problem, goal), TRY_SHARE)
        part.cost_bound, part.on_progress = CostBound(self.most_ticks), self.report
        improved = improvers.improve(self.problem, goal, found, TimeSlices(part))
        self.slices.absorb(part)
        return improved if improved is found else min(improved, self.lowered([improved]), key=self.score)
