"""Continue from a known order: reorder its runs, lower its peak, or walk on, without a new start of the portfolio."""

from __future__ import annotations

from dataclasses import replace

from planner.algorithms import planner_named
from planner.algorithms.annealing.parallel import FIRST_RUN_PERCENT
from planner.algorithms.annealing.reorder_runs import flatten_runs, reorder_runs
from planner.algorithms.annealing.search import Annealing, bytes_near
from planner.algorithms.greedy import planner as greedy
from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal
from planner.search import improvers
from planner.search.alternative_search import goal_for_choices
from planner.search.improver_beside import WALK
from planner.search.scores import judge_of

#: Planner of `replanned` for "auto".
QUICK = "greedy"


def reordered(problem: Problem, goal: Goal, candidate: Candidate, monitor: Monitor) -> Candidate:
    """The candidate with the same runs in another order, if that exceeds the budget less; O(reads) and annealing."""
    columns = resolve_choices(problem, candidate.choices)
    judge = judge_of(columns, goal)
    order = reorder_runs(columns, goal, candidate.order, judge, monitor)
    return candidate if order is candidate.order else replace(candidate, order=order)


def flattened(problem: Problem, goal: Goal, candidate: Candidate, monitor: Monitor) -> Candidate:
    """The candidate with the same runs in an order that holds less near the budget; itself if none is found."""
    columns = resolve_choices(problem, candidate.choices)
    order = flatten_runs(columns, goal, candidate.order, monitor)
    return candidate if order is candidate.order else replace(candidate, order=order)


def near_bytes(problem: Problem, goal: Goal, candidate: Candidate) -> int:
    """Bytes that a candidate holds near the budget, summed over steps."""
    return bytes_near(resolve_choices(problem, candidate.choices), candidate.order, goal.budget_bytes or 0)


def flatter(problem: Problem, goal: Goal, candidate: Candidate, most: int, monitor: Monitor) -> Candidate:
    """The cheapest candidate found by other recomputation that holds about `most` bytes near the budget, or less.

    `candidate` itself if none is found, or if it is such a candidate and none cheaper is found.
    """
    columns, budget = resolve_choices(problem, candidate.choices), goal.budget_bytes or 0
    walk = Annealing(columns, goal, monitor, first_runs=0 if goal.order_is_given else FIRST_RUN_PERCENT)
    order = walk.flat_within(candidate.order, budget, 1.0, most)
    is_found = order is not candidate.order and liveness.peak(columns, order) <= budget
    return Candidate(order, WALK, candidate.choices) if is_found else candidate


def replanned(problem: Problem, goal: Goal, planner: str, candidate: Candidate, monitor: Monitor) -> Candidate:
    """The best order of `planner` under the candidate's choices, or the candidate if that is better.

    "auto": of `evict` if that or the search of its weights has found the candidate, else of `greedy`.
    """
    quick = improvers.EVICT if candidate.planner in (improvers.EVICT, improvers.EVICTIONS[0]) else QUICK
    return _improved(problem, goal, quick if planner == "auto" else planner, candidate, monitor, from_it=False)


def lowered(problem: Problem, goal: Goal, candidate: Candidate, monitor: Monitor) -> Candidate:
    """The candidate with gaps closed until it is within the budget or its peak falls no further.

    Takes a small part of the time of `replanned`, since the gaps that the candidate has closed stay closed.
    """
    columns = resolve_choices(problem, candidate.choices)
    under = goal_for_choices(problem, goal, candidate.choices)
    monitor.judge = judge_of(columns, under)
    order = greedy.sunk(columns, candidate.order, under.budget_bytes or 0, monitor, None)
    return candidate if order is candidate.order else Candidate(order, QUICK, candidate.choices)


def walk_on(problem: Problem, goal: Goal, candidate: Candidate, monitor: Monitor) -> Candidate:
    """The best order found from the candidate by the improver that found it, else by annealing.

    By the clock the optimum of a tiny problem, which ends the search before the clock does.
    The candidate itself if nothing better is found, or if the problem is too large for annealing.
    """
    names = [name for name, _ in improvers.IMPROVERS]
    planner = candidate.planner if candidate.planner in names else WALK
    if problem.tasks <= improvers.TINY_TASKS and monitor.iterations is None:
        planner = "exact"
    if improvers.is_too_slow(problem, planner):
        return candidate
    return _improved(problem, goal, planner, candidate, monitor, from_it=True)


def _improved(
    problem: Problem, goal: Goal, planner: str, candidate: Candidate, monitor: Monitor, from_it: bool
) -> Candidate:
    """The better of the candidate and the result of `planner`, which starts `from_it` if it starts from an order."""
    columns, choices = resolve_choices(problem, candidate.choices), candidate.choices
    under = goal_for_choices(problem, goal, choices)
    monitor.judge = judge_of(columns, under)
    start = monitor.judge(candidate.order)
    if from_it:
        monitor.record_best(candidate.order, start)
    monitor.offer(planner_named(planner)(columns, under, monitor))
    assert monitor.best is not None and monitor.best_score is not None
    return Candidate(monitor.best, planner, choices) if monitor.best_score < start else candidate
