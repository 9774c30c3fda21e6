"""Search for a goal: least time within a budget, or the lowest peak and then the least time at that peak.

    budget ──▶ search within it ──met──▶ plan
                 │ over budget, or proven unreachable
    0 ───────────┴──▶ lowest peak P ──▶ least time within P ──▶ plan

A budget that is not met gets the plan of budget 0, so its peak, given as a budget, can be met. By the clock, `auto`
searches for the lowest peak as `peak_descent.py` says. Runs that nothing reads are removed from what `auto` finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.problem import Problem
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import CostBound, Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search import improvers, portfolio
from planner.search.peak_descent import lowest_peak
from planner.search.scores import is_infeasible, judge_of, score_of
from planner.search.time_slices import TimeSlices
from planner.search.unread_runs import LARGE_TASKS, without_unread_runs

#: Share of the search for the lowest peak; the rest minimises the time at that peak.
PEAK_SHARE = 0.5
#: Lower peaks that a search at the lowest peak may turn up under an iteration limit, each of which is searched again.
MAX_LOWER_PEAKS = 8


def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()) -> Candidate:
    """The best order `planner` finds for the goal, no worse than any of the seeds; see `portfolio.search`.

    The lowest peak and the least time at it, if no order is found within the budget.
    """
    if not goal.budget_bytes:
        return _lowest_peak(problem, goal, planner, monitor, seeds)
    slices, missed = TimeSlices(monitor), list[Candidate]()
    if not is_infeasible(problem, goal, monitor.peak_bound):
        found = portfolio.search(problem, goal, planner, monitor, seeds)
        if monitor.cancelled and problem.tasks > LARGE_TASKS:
            return found  # a stop does not wait for seconds of rounds
        found = _without_unread(problem, goal, planner, found)
        is_met = score_of(problem, goal, found).bytes_over_budget == 0
        if is_met or monitor.is_optimal or slices.is_over():
            return found
        missed.append(found)
    lowest, budget = replace(goal, budget_bytes=0), goal.budget_bytes
    part = slices.part(judge_of(problem, lowest), 1.0)
    part.cost_bound = CostBound()  # that of a smaller budget is no bound at the lowest peak

    def report_best(order: Order, score: Score) -> None:
        slices.report_best(order, score._replace(bytes_over_budget=max(0, score.peak_bytes - budget)))

    part.on_progress = report_best
    # Under an iteration limit without `missed`: the lowest peak found is then the same for all budgets.
    seeds = [*seeds, *missed] if slices.by_clock else seeds
    found = _lowest_peak(problem, lowest, planner, part, seeds, missed, budget)
    slices.absorb(part)
    monitor.notes += part.notes
    monitor.is_optimal = part.is_optimal
    return found


def search_budget(
    problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()
) -> Candidate:
    """As `search`, but without a search for the lowest peak if no order is found within the budget."""
    if not goal.budget_bytes:
        return _lowest_peak(problem, goal, planner, monitor, seeds)
    return _without_unread(problem, goal, planner, portfolio.search(problem, goal, planner, monitor, seeds))


def _lowest_peak(
    problem: Problem,
    goal: Goal,
    planner: str,
    monitor: Monitor,
    seeds: Sequence[Candidate],
    missed: Sequence[Candidate] = (),
    budget_bytes: int = 0,
) -> Candidate:
    """The lowest peak found, that of `missed` included, and the least time within it or within `budget_bytes`.

    With `max_overhead` in the goal, the lowest peak within that time. Under an iteration limit each of both phases gets
    all iterations.
    """
    slices = TimeSlices(monitor)
    part = slices.part(monitor.judge, PEAK_SHARE)
    part.on_progress = monitor.on_progress
    if planner == "auto" and not slices.by_clock:
        lowest = portfolio.search_by_iterations(problem, goal, part, seeds, search)
    elif planner == "auto":
        lowest = lowest_peak(problem, goal, part, [*seeds, *missed], budget_bytes)
    else:
        lowest = portfolio.search(problem, goal, planner, part, seeds)
    if goal.max_overhead is not None:
        lowest = _within_the_time(problem, goal, lowest)
    lowest = min((lowest, *missed), key=lambda candidate: score_of(problem, goal, candidate))
    lowest = _without_unread(problem, goal, planner, lowest)
    slices.absorb(part)
    monitor.notes += part.notes
    monitor.is_optimal = part.is_optimal
    if part.is_optimal or slices.is_over():
        return lowest
    if planner == "auto" and not slices.by_clock:
        return _least_time_by_iterations(problem, goal, lowest, slices, seeds, budget_bytes)
    within = _at_the_peak(problem, goal, lowest, budget_bytes)
    part = slices.part(judge_of(problem, within), 1.0)
    cheaper = portfolio.search(problem, within, planner, part, [lowest])
    slices.absorb(part)
    return _without_unread(problem, goal, planner, cheaper)


def _least_time_by_iterations(
    problem: Problem, goal: Goal, lowest: Candidate, slices: TimeSlices, seeds: Sequence[Candidate], budget_bytes: int
) -> Candidate:
    """The least time at the lowest peak: what a request for this peak finds, or what is found from `lowest`.

    Again at each lower peak that turns up, so that a request for the peak finds neither a lower one nor less time.
    """
    for _ in range(MAX_LOWER_PEAKS):
        within = _at_the_peak(problem, goal, lowest, budget_bytes)
        part = slices.part(judge_of(problem, within), 1.0)
        requested = portfolio.search(problem, within, "auto", part, seeds)
        slices.absorb(part)
        part = slices.part(judge_of(problem, within), 1.0)
        improved = improvers.improve(problem, within, lowest, TimeSlices(part))
        found = [_without_unread(problem, goal, "auto", candidate) for candidate in (improved, requested)]
        slices.absorb(part)
        lowest = min(found, key=lambda candidate: score_of(problem, goal, candidate))
        if _at_the_peak(problem, goal, lowest, budget_bytes) == within or slices.is_over():
            break
    return min(found, key=lambda candidate: score_of(problem, within, candidate))


def _at_the_peak(problem: Problem, goal: Goal, lowest: Candidate, budget_bytes: int) -> Goal:
    """The goal within the peak of `lowest`, or within `budget_bytes` if that is more."""
    budget = max(score_of(problem, goal, lowest).peak_bytes, budget_bytes)
    return replace(goal, budget_bytes=budget, max_overhead=None)


def _within_the_time(problem: Problem, goal: Goal, found: Candidate) -> Candidate:
    """The candidate, or the given order if the candidate exceeds the time limit (mirroring ignores limits)."""
    score = score_of(problem, goal, found)
    takes_longer = score.bytes_over_budget > score.peak_bytes
    return Candidate(base_order(problem, goal.strict_phases), "as_given") if takes_longer else found


def _without_unread(problem: Problem, goal: Goal, planner: str, found: Candidate) -> Candidate:
    """The candidate without runs that nothing reads; as it is if one planner was requested, such as `mirror`."""
    if planner != "auto":
        return found
    return replace(found, order=without_unread_runs(resolve_choices(problem, found.choices), goal, found.order))
