"""Scores under a goal, and what lower bounds prove about them before any search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from planner.bounds import held_at_end, largest_task
from planner.problem import Problem, liveness
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order

#: Bytes that the columns of a problem alone prove for its peak, while the problem is in use: each search looks often.
_FLOORS: WeakKeyDictionary[Problem, int] = WeakKeyDictionary()


def goal_score(problem: Problem, goal: Goal, order: Order, choices: Sequence[int] = ()) -> Score:
    """The order's score under the goal; an order above `max_overhead` ranks last.

    The overhead is relative to the cost under the first alternatives. With `max_overhead`, `bytes_over_budget` is the
    peak.
    """
    budget = goal.budget_bytes or 0
    score = liveness.score(resolve_choices(problem, choices), order, budget)
    if goal.max_overhead is None:
        return score
    limit = int(problem.cost.sum() * (1 + goal.max_overhead))
    table = problem.choices
    behind = int(problem.size.sum() + problem.workspace.max(initial=0) + table.size.sum() + table.workspace.sum()) + 1
    return score._replace(bytes_over_budget=score.peak_bytes + (behind if score.cost > limit else 0))


def judge_of(problem: Problem, goal: Goal, choices: Sequence[int] = ()) -> Callable[[Order], Score]:
    """Judge of orders under these choices of alternatives: their score under the goal."""
    return lambda order: goal_score(problem, goal, order, choices)


def score_of(problem: Problem, goal: Goal, candidate: Candidate) -> Score:
    """The score of a candidate under the goal."""
    return goal_score(problem, goal, candidate.order, candidate.choices)


def better(problem: Problem, goal: Goal, known: Candidate | None, found: Candidate) -> Candidate:
    """`found`, unless `known` scores better."""
    if known is None:
        return found
    return known if score_of(problem, goal, known) < score_of(problem, goal, found) else found


def or_as_given(problem: Problem, goal: Goal, known: Candidate | None) -> Candidate:
    """`known`, or the order of the document if that is as good."""
    return better(problem, goal, known, Candidate(base_order(problem, goal.strict_phases), "as_given"))


def is_proven_cheapest(problem: Problem, goal: Goal, score: Score, monitor: Monitor) -> bool:
    """Whether the lower bounds prove that no plan within the budget takes less time."""
    if not goal.budget_bytes or score.bytes_over_budget:
        return False
    return score.cost <= max(relax_choices(problem).single_run_ticks(), monitor.cost_bound.ticks)


def is_infeasible(problem: Problem, goal: Goal, peak_bound: int = 0) -> bool:
    """Whether a lower bound on the peak exceeds the budget."""
    return bool(goal.budget_bytes) and (goal.budget_bytes or 0) < peak_floor(problem, peak_bound)


def peak_floor(problem: Problem, peak_bound: int = 0) -> int:
    """Lower bound on the peak, in bytes: largest task, held at the end, `peak_bound`."""
    floor = _FLOORS.get(problem)
    if floor is None:
        relaxed = relax_choices(problem)
        _FLOORS[problem] = floor = max(largest_task.bound(relaxed).bytes, held_at_end.bound(relaxed))
    return max(floor, peak_bound)
