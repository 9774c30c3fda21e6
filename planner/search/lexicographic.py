"""Search for a goal: least time within a budget, or the lowest peak and then the least time at that peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search import portfolio
from planner.search.time_slices import TimeSlices

#: Share of the search for the lowest peak; the rest minimises the time at that peak.
PEAK_SHARE = 0.75


def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()) -> Candidate:
    """The best order `planner` finds for the goal, no worse than any of the seeds; see `portfolio.search`.

    Many plans reach the lowest peak; a second phase minimises the time at that peak.
    """
    if goal.budget_bytes:
        return portfolio.search(problem, goal, planner, monitor, seeds)
    if planner == "auto" and monitor.iterations is not None:
        return _in_rounds(problem, goal, monitor, seeds)
    part = monitor.child(monitor.judge, PEAK_SHARE)
    part.on_progress = monitor.on_progress
    lowest = portfolio.search(problem, goal, planner, part, seeds)
    if goal.max_overhead is not None:
        lowest = _within_the_time(problem, goal, lowest)
    monitor.absorb(part)
    monitor.notes += part.notes
    if part.is_optimal or monitor.should_stop():
        monitor.is_optimal = part.is_optimal
        return lowest
    return _cheapest_at_its_peak(
        problem, goal, monitor, lowest, lambda within, rest: portfolio.search(problem, within, planner, rest, [lowest])
    )


def _within_the_time(problem: Problem, goal: Goal, found: Candidate) -> Candidate:
    """The candidate, or the given order if the candidate exceeds the time limit (mirroring ignores limits)."""
    score = portfolio.goal_score(problem, goal, found.order, found.choices)
    takes_longer = score.bytes_over_budget > score.peak_bytes
    return Candidate(base_order(problem, goal.strict_phases), "as_given") if takes_longer else found


def _in_rounds(problem: Problem, goal: Goal, monitor: Monitor, seeds: Sequence[Candidate]) -> Candidate:
    """Result of "auto" under an iteration limit: each of both phases gets all iterations."""
    slices = TimeSlices(monitor)
    part = slices.part(monitor.judge, 1.0)
    part.on_progress = monitor.on_progress
    lowest = portfolio.search_by_iterations(problem, goal, part, seeds, search)
    monitor.is_optimal = part.is_optimal
    found = lowest
    if not (part.is_optimal or slices.is_over()):
        found = _cheapest_at_its_peak(
            problem,
            goal,
            slices.total,
            lowest,
            lambda within, rest: portfolio.improve(problem, within, lowest, TimeSlices(rest)),
        )
    slices.absorb(part)
    return found


def _cheapest_at_its_peak(
    problem: Problem,
    goal: Goal,
    monitor: Monitor,
    lowest: Candidate,
    search_within: Callable[[Goal, Monitor], Candidate],
) -> Candidate:
    """Second lexicographic phase: minimise time subject to peak ≤ the peak found."""
    score = portfolio.goal_score(problem, goal, lowest.order, lowest.choices)
    within = replace(goal, budget_bytes=score.peak_bytes, max_overhead=None)

    def judge(order: Order) -> Score:
        return portfolio.goal_score(problem, within, order)

    part = monitor.child(judge)
    cheaper = search_within(within, part)
    monitor.absorb(part)
    return cheaper if portfolio.goal_score(problem, goal, cheaper.order, cheaper.choices) < score else lowest
