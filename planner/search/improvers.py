"""Improvers: planners that start from the best order so far, one after the other, and beside them another core.

Each gets a share of the time left, and goes on while it finds better orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from planner.algorithms import planner_named
from planner.algorithms.annealing.parallel import anneal_alone, anneal_in_parallel, is_order_free
from planner.problem import Problem
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import EarlyEnd, Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.search.alternative_search import goal_for_choices
from planner.search.improver_beside import WALK, ImproverBeside
from planner.search.scores import is_proven_cheapest, judge_of, peak_floor, score_of
from planner.search.time_slices import TimeSlices

#: Improver by the clock that runs only where the best order fits the budget and is that of the planner EVICT, with its
#: share of the remaining search: it changes the weights of that planner, whose orders others seldom improve.
EVICT, EVICTIONS = "evict", ("search_evictions", 0.5)
#: Planners that improve the best order, each with its share of the remaining search.
IMPROVERS = (("blocks", 0.4), ("moment", 0.5), ("anneal", 1.0))
#: The same under a time limit: `moment` first, since its plans often meet the bound, which ends the search.
IMPROVERS_BY_CLOCK = (("moment", 0.4), ("blocks", 0.4), EVICTIONS, ("anneal", 1.0))
#: An improver that finds a better order goes on for so many times the time it has used, within this share of the rest.
GOES_ON, MAX_SHARE = 1.6, 0.75
#: The same while another core runs `blocks`, or a walk where the order is free.
IMPROVERS_BESIDE = (("moment", MAX_SHARE), EVICTIONS, ("anneal", 1.0))
#: Both with `neighbourhood`, which keeps the order of first runs: where an order fits the budget and order decides
#: little.
WITH_NEIGHBOURHOOD = (("moment", 0.3), ("blocks", 0.2), EVICTIONS, ("neighbourhood", 0.8), ("anneal", 1.0))
WITH_NEIGHBOURHOOD_BESIDE = (("moment", 0.5), EVICTIONS, ("neighbourhood", 0.6), ("anneal", 1.0))
#: Largest share of the rest for each quick planner that runs after the first improver.
LATER_SHARE = 0.25
#: Up to this many tasks, a solver runs last if no order fits the budget yet or the goal is the lowest peak.
MAX_SOLVER_TASKS = 100
#: That solver with its share of the remaining search, and the maximum share of each improver before it.
SOLVER, SHARE_BEFORE_SOLVER = ("cp_sat", 1.0), 0.7
#: Up to TINY_TASKS tasks `exact` runs before all others, which are skipped if it proves the optimum.
TINY_TASKS = 16
#: Above MAX_SLOW_TASKS tasks the SLOW_PLANNERS are skipped: a single order takes too long.
MAX_SLOW_TASKS, SLOW_PLANNERS = 20_000, ("evict", "search_evictions", "min_cut", "revolve", "moment", "anneal")


def is_too_slow(problem: Problem, planner: str) -> bool:
    """Whether a planner is skipped because a single order of it takes too long."""
    return planner in SLOW_PLANNERS and problem.tasks > MAX_SLOW_TASKS


def has_idle_core(problem: Problem, monitor: Monitor) -> bool:
    """Whether a core would be idle that may improve orders beside the search."""
    return _is_walked_by_clock(problem, monitor) and monitor.idle_cores > 0


def _is_walked_by_clock(problem: Problem, monitor: Monitor) -> bool:
    """Whether all improvers may run, and a clock ends them."""
    return monitor.iterations is None and TINY_TASKS < problem.tasks <= MAX_SLOW_TASKS


def improve(problem: Problem, goal: Goal, found: Candidate, slices: TimeSlices, later: Sequence[str] = ()) -> Candidate:
    """The best of `found`, of the improvers that start from it, and of the planners `later`, after the first of them.

    Those run only if a core is idle.
    """
    best, monitor = score_of(problem, goal, found), slices.monitor
    monitor.record_best(found.order, best)
    floor = peak_floor(problem, monitor.peak_bound)
    if goal.budget_bytes and goal.budget_bytes < floor:
        return found
    return _Improvement(problem, goal, found, best, floor, slices, later).run()


class _Improvement:
    """One run of the improvers; `found` and `best` are the best candidate so far and its score."""

    def __init__(
        self,
        problem: Problem,
        goal: Goal,
        found: Candidate,
        best: Score,
        floor: int,
        slices: TimeSlices,
        later: Sequence[str],
    ):
        self.problem, self.goal, self.slices, self.later, self.floor = problem, goal, slices, later, floor
        self.found, self.best, self.monitor = found, best, slices.monitor
        self.columns = resolve_choices(problem, found.choices)
        self.under = goal_for_choices(problem, goal, found.choices)
        self.judge = judge_of(problem, goal, found.choices)
        self.has_solver = bool(best.bytes_over_budget) and problem.tasks <= MAX_SOLVER_TASKS
        self.proven = EarlyEnd(self.monitor.cancel_event)  # set once the other core has a proven plan
        self.beside: ImproverBeside | None = None
        self.is_free = False  # whether the order is free, so that a walk begins at once

    def run(self) -> Candidate:
        """The best candidate of all improvers."""
        if _is_walked_by_clock(self.problem, self.monitor) and not self._is_proven(self.best):
            self._look_for_free_order()
        fits = bool(self.goal.budget_bytes) and not self.best.bytes_over_budget
        keeps_order = fits and not self.is_free and _is_walked_by_clock(self.problem, self.monitor)
        by_clock = WITH_NEIGHBOURHOOD if keeps_order else IMPROVERS_BY_CLOCK
        improvers: tuple[tuple[str, float], ...] = by_clock if self.slices.by_clock else IMPROVERS
        if has_idle_core(self.problem, self.monitor):
            first, *rest = WITH_NEIGHBOURHOOD_BESIDE if keeps_order else IMPROVERS_BESIDE
            improvers = (first, *((name, LATER_SHARE) for name in self.later), *rest)
            self.beside = self._start_beside()
        try:
            self._run_all((*improvers, SOLVER) if self.has_solver else improvers)
        finally:
            if self.beside is not None:
                self.beside.end()
        self._take_from_beside()
        return self.found

    def _run_all(self, improvers: Sequence[tuple[str, float]]) -> None:
        """Run improvers, each with its share of the rest, until one proves its order or the time is over."""
        for name, share in improvers:
            if self.beside is not None and ((name == WALK and not self.is_free) or name == SOLVER[0]):
                self.beside.end_walk()
            self._take_from_beside()
            if is_too_slow(self.problem, name) or self._is_proven(self.best):
                continue
            if name == EVICTIONS[0] and (self.found.planner != EVICT or self.best.bytes_over_budget):
                continue
            if self.slices.is_over() or (not self.goal.budget_bytes and self.best.bytes_over_budget <= self.floor):
                break
            self._run_one(name, share)

    def _run_one(self, name: str, share: float) -> None:
        """Run an improver from the best order."""
        if self.has_solver and name != SOLVER[0]:
            share = min(share, SHARE_BEFORE_SOLVER)
        part = self._slice(name, share)
        if name == WALK and self.is_free:  # the thread of the other core walks on
            walk = anneal_in_parallel if self.beside is None else anneal_alone
            part.offer(walk(self.columns, self.under, part, self.found.order, self.is_free))
        else:
            part.offer(planner_named(name)(self.columns, self.under, part))
        self.slices.absorb(part)
        assert part.best is not None and part.best_score is not None
        if part.best_score < self.best:
            self._take(part.best, part.best_score, name)
            self.slices.report_best(part.best, part.best_score)

    def _slice(self, name: str, share: float) -> Monitor:
        """Monitor of one improver, which starts from the best order."""
        part = self.slices.part(self.judge, share)
        part.cancel_event = self.proven
        part.record_best(self.found.order, self.best)
        part.on_progress = self.slices.report_best if self.slices.by_clock else self.monitor.on_progress
        if self.slices.by_clock and share < MAX_SHARE and name not in self.later:
            part.on_progress = going_on(part, self.slices, MAX_SHARE / share * part.seconds)
        return part

    def _look_for_free_order(self) -> None:
        """Find out whether the order is free; the look may find a better one."""
        look = self.slices.part(self.judge, 1.0)
        look.on_progress = self.slices.report_best
        self.is_free = is_order_free(self.columns, self.under, look)
        self.slices.absorb(look)
        if look.best is not None and look.best_score is not None and look.best_score < self.best:
            self._take(look.best, look.best_score, WALK)

    def _start_beside(self) -> ImproverBeside:
        """Start to improve the best order on another core."""
        part = self.slices.part(self.judge, 1.0)
        part.record_best(self.found.order, self.best)
        return ImproverBeside(
            self.columns, self.under, part, lambda: self.monitor.best, self._report_beside, self.is_free
        )

    def _report_beside(self, order: Order, score: Score) -> None:
        """Report a better order of the other core, from its thread."""
        self.slices.report_best(order, score)
        if self._is_proven(score):
            self.proven.set()

    def _take_from_beside(self) -> None:
        """The best order of the other core so far becomes `found`, if it is better."""
        if self.beside is not None:
            order, score, planner = self.beside.found
            if score < self.best:
                self._take(order, score, planner)

    def _take(self, order: Order, score: Score, planner: str) -> None:
        """The candidate becomes `found`."""
        self.found, self.best = Candidate(order, planner, self.found.choices), score

    def _is_proven(self, score: Score) -> bool:
        """Whether no plan within the budget takes less time."""
        return is_proven_cheapest(self.problem, self.goal, score, self.monitor)


def going_on(part: Monitor, slices: TimeSlices, most: float) -> Callable[[Order, Score], None]:
    """Progress callback of a slice that goes on while it finds better orders, for at most so many seconds."""

    def improved(order: Order, score: Score) -> None:
        slices.report_best(order, score)
        part.seconds = min(most, max(part.seconds, GOES_ON * (time.monotonic() - part.started)))

    return improved
