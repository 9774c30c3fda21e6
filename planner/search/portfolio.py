"""Which algorithms to try, each fed to one monitor that keeps the best.

By the clock a few that are quick share half of the time, and others improve the best of it in the rest. A limit on
iterations is one for each planner instead, in two rounds that exchange orders in between, so that none of ALONE finds
better with as many by itself:

    each planner as if alone ── best ──▶ blocks ── best ──▶ annealing, ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.algorithms import PLANNERS, planner_named
from planner.algorithms.exact import dijkstra
from planner.bounds import held_at_end, largest_task
from planner.problem import Problem, liveness
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search.alternative_search import goal_for_choices, search_choices
from planner.search.time_slices import TimeSlices

#: Tried by `auto` in this order, the quickest to fit first, so that a stop always has something. They get this part of
#: the search; what they find is improved by the others, each with a part of what is left.
QUICK_PLANNERS, QUICK_SHARE = ("as_given", "greedy", "mirror", "segments", "revolve"), 0.5
IMPROVERS = (("blocks", 0.4), ("moment", 0.5), ("anneal", 1.0))
#: Of so few tasks, where nothing known fits or the lowest peak is asked for, a model is solved in the end. It is left
#: time by the others.
MAX_SOLVER_TASKS, SOLVER, SHARE_BEFORE_SOLVER = 100, ("cp_sat", 1.0), 0.7
#: Where so many vectors of choices are all there are, `exact` may look at each, in this part of what is left: up to so
#: many tasks before all others, which then have nothing to do.
MAX_VECTORS, EXACT_SHARE, TINY_TASKS = 64, 0.3, 16
#: With a limit on iterations these have all of them to themselves. Not those that solve a model, whose first node alone
#: may take as long as all others together.
STANDALONE_PLANNERS = tuple(
    dict.fromkeys((*QUICK_PLANNERS, "exact", *(name for name in PLANNERS if name not in ("milp", "cp_sat"))))
)
#: Above so many tasks these are left out: one order of theirs takes too long to pay.
MAX_SLOW_TASKS, SLOW_PLANNERS = 20_000, ("revolve", "moment", "anneal")


@dataclass(frozen=True, slots=True)
class Candidate:
    order: Order
    planner: str
    choices: tuple[int, ...] = ()  # of the alternatives of `Problem.choices`


#: Planners that know no budget plan the first alternative of every group.
FIRST_ALTERNATIVES = ("as_given", "mirror")


def goal_score(problem: Problem, goal: Goal, order: Order, choices: Sequence[int] = ()) -> Score:
    """The order's score under the goal; one that takes longer than `max_overhead` allows ranks last.

    An overhead counts from what the first alternatives cost.
    """
    budget = goal.budget_bytes or 0
    score = liveness.score(resolve_choices(problem, choices), order, budget)
    if goal.max_overhead is None:
        return score
    limit = int(problem.cost.sum() * (1 + goal.max_overhead))
    table = problem.choices
    behind = int(problem.size.sum() + problem.workspace.max(initial=0) + table.size.sum() + table.workspace.sum()) + 1
    return score._replace(bytes_over_budget=score.peak_bytes + (behind if score.cost > limit else 0))


def _judge_of(problem: Problem, goal: Goal, choices: Sequence[int]) -> Callable[[Order], Score]:
    return lambda order: goal_score(problem, goal, order, choices)


def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()) -> Candidate:
    """The best order `planner` finds, or for "auto" the best of all in the table, over all alternatives.

    `seeds` are orders that are legal under the goal, such as plans of the same problem at tighter budgets: what
    comes out is no worse than any of them, and "auto" goes on from the best.
    A stop gives the best so far, which is at least the document's order.
    """
    if planner == "auto" and monitor.iterations is not None:
        return search_by_iterations(problem, goal, monitor, seeds, _search_choices)
    known, arms = _best_of(problem, goal, seeds, monitor), TimeSlices(monitor)
    if planner != "auto":
        return _better(problem, goal, known, _search_choices(problem, goal, planner, monitor))
    if problem.tasks <= TINY_TASKS:
        known = _exact_over_choices(problem, goal, _or_as_given(problem, goal, known), arms)
        if monitor.is_optimal:
            return known
    part = arms.part(monitor.judge, QUICK_SHARE)
    part.on_progress = monitor.on_progress
    found = _better(problem, goal, known, _search_choices(problem, goal, planner, part))
    arms.spent(part)
    if problem.tasks > TINY_TASKS:
        found = _exact_over_choices(problem, goal, found, arms)
    return found if monitor.is_optimal else improve(problem, goal, found, arms)


def search_by_iterations(
    problem: Problem, goal: Goal, monitor: Monitor, seeds: Sequence[Candidate], alone: Callable[..., Candidate]
) -> Candidate:
    """What "auto" finds with a limit on iterations; `alone(problem, goal, name, monitor)` is what one planner does.

    A budget that is out of reach is left to the few that are quick.
    """
    found, arms = _or_as_given(problem, goal, _best_of(problem, goal, seeds, monitor)), TimeSlices(monitor)
    names = (*QUICK_PLANNERS, "exact") if is_infeasible(problem, goal, monitor.peak_bound) else STANDALONE_PLANNERS
    if problem.tasks <= TINY_TASKS:
        names = ("exact", *names)
    for name in dict.fromkeys(names):
        if name in SLOW_PLANNERS and problem.tasks > MAX_SLOW_TASKS:
            continue
        best = goal_score(problem, goal, found.order, found.choices)
        if arms.is_over() or is_proven_cheapest(problem, goal, best, monitor):
            return found
        if name == "exact":
            found = _exact_over_choices(problem, goal, found, arms)
            if monitor.is_optimal:
                return found
        part = arms.part(monitor.judge, 1.0)
        part.on_progress = arms.told
        found = _better(problem, goal, alone(problem, goal, name, part), found)
        arms.spent(part)
    return improve(problem, goal, found, arms)


def _or_as_given(problem: Problem, goal: Goal, known: Candidate | None) -> Candidate:
    """What is known, or the document's order where that is as good."""
    return _better(problem, goal, known, Candidate(base_order(problem, goal.strict_phases), "as_given"))


def _best_of(problem: Problem, goal: Goal, seeds: Sequence[Candidate], monitor: Monitor) -> Candidate | None:
    """The best of the seeds, which whoever waits is told of; None when there are none."""
    best: Candidate | None = None
    for seed in seeds:
        best = _better(problem, goal, best, seed)
    if best is not None and monitor.on_progress is not None:
        monitor.on_progress(best.order, goal_score(problem, goal, best.order, best.choices))
    return best


def _better(problem: Problem, goal: Goal, known: Candidate | None, found: Candidate) -> Candidate:
    """What was found, unless what is known scores better."""
    if known is None:
        return found
    known_score = goal_score(problem, goal, known.order, known.choices)
    return known if known_score < goal_score(problem, goal, found.order, found.choices) else found


def _exact_over_choices(problem: Problem, goal: Goal, found: Candidate, arms: TimeSlices) -> Candidate:
    """What was found, or the best of all orders under all alternatives where those are few enough to look at."""
    counts, monitor = problem.choices.counts().tolist(), arms.monitor
    best = goal_score(problem, goal, found.order, found.choices)
    monitor.tell(found.order, best)
    if is_proven_cheapest(problem, goal, best, monitor):
        monitor.is_optimal = True
        return found
    if problem.tasks > dijkstra.MAX_TASKS or math.prod(counts) > MAX_VECTORS:
        return found
    own, whole = found.choices or (0,) * len(counts), arms.part(monitor.judge, 1.0)
    vectors = sorted(itertools.product(*map(range, counts)), key=lambda vector: vector != own)
    for k, vector in enumerate(vectors):
        columns = resolve_choices(problem, vector)
        if goal.budget_bytes and not best.bytes_over_budget and _once(columns) >= best.cost:
            continue
        part = whole.beside(_judge_of(problem, goal, vector), EXACT_SHARE / (len(vectors) - k))
        part.offer(found.order if vector == own else base_order(columns, goal.strict_phases))
        order = dijkstra.plan(columns, goal_for_choices(problem, goal, vector), part)
        whole.spent(part)
        if (score := goal_score(problem, goal, order, vector)) < best:
            found, best = Candidate(order, "exact", vector), score
            monitor.tell(order, score)
        if not part.is_optimal:
            break
    else:
        monitor.is_optimal = True
    arms.spent(whole)
    return found


def improve(problem: Problem, goal: Goal, found: Candidate, arms: TimeSlices) -> Candidate:
    """What was found, or what those who improve make of it where that is better."""
    monitor = arms.monitor
    best = goal_score(problem, goal, found.order, found.choices)
    monitor.tell(found.order, best)
    if is_infeasible(problem, goal, monitor.peak_bound):
        return found
    choices = found.choices
    columns, under = resolve_choices(problem, choices), goal_for_choices(problem, goal, choices)
    solved = bool(best.bytes_over_budget) and problem.tasks <= MAX_SOLVER_TASKS
    for name, share in (*IMPROVERS, SOLVER) if solved else IMPROVERS:
        if (name in SLOW_PLANNERS and problem.tasks > MAX_SLOW_TASKS) or is_proven_cheapest(
            problem, goal, best, monitor
        ):
            continue
        if arms.is_over():
            break
        share = min(share, SHARE_BEFORE_SOLVER) if solved and name != SOLVER[0] else share
        part = arms.part(_judge_of(problem, goal, choices), share)
        part.tell(found.order, best)
        part.on_progress = monitor.on_progress
        part.offer(planner_named(name)(columns, under, part))
        arms.spent(part)
        assert part.best is not None and part.best_score is not None
        if part.best_score < best:
            found, best = Candidate(part.best, name, choices), part.best_score
            monitor.tell(found.order, best)
    return found


def is_proven_cheapest(problem: Problem, goal: Goal, score: Score, monitor: Monitor) -> bool:
    """Whether no plan within the budget can take less time."""
    if not goal.budget_bytes or score.bytes_over_budget:
        return False
    return score.cost <= max(_once(relax_choices(problem)), monitor.cost_bound)


def _once(problem: Problem) -> int:
    """Ticks of one run of every task that has to run."""
    return int(problem.cost[~problem.optional].sum())


def is_infeasible(problem: Problem, goal: Goal, least_peak: int = 0) -> bool:
    """Whether one task alone, what is held in the end, or the bytes that a bound proves are more than the budget."""
    if not goal.budget_bytes:
        return False
    least = relax_choices(problem)
    return goal.budget_bytes < max(largest_task.bound(least).bytes, held_at_end.bound(least), least_peak)


def _search_choices(problem: Problem, goal: Goal, planner: str, monitor: Monitor) -> Candidate:
    """The best order under the alternatives that suit it."""
    if not len(problem.choices) or planner in FIRST_ALTERNATIVES:
        return _search(resolve_choices(problem), goal, planner, monitor)

    def plain(columns: Problem, under: Goal, part: Monitor) -> tuple[Order, str]:
        found = _search(columns, under, planner, part)
        return found.order, found.planner

    chosen = search_choices(problem, goal, monitor, plain, goal_score)
    return Candidate(chosen.order, chosen.planner, chosen.choices)


def _search(problem: Problem, goal: Goal, planner: str, monitor: Monitor) -> Candidate:
    """The same on plain columns."""
    if planner != "auto":
        order = planner_named(planner)(problem, goal, monitor)
        score = monitor.offer(order)
        if monitor.best is not None and monitor.best_score is not None and monitor.best_score < score:
            order = monitor.best  # what the search offered on its way was better
        return Candidate(order, planner)
    best = Candidate(np.arange(problem.tasks), "as_given")
    for name in QUICK_PLANNERS:
        known = monitor.best_score
        if known is not None and (monitor.cancelled or is_proven_cheapest(problem, goal, known, monitor)):
            break
        if name in SLOW_PLANNERS and problem.tasks > MAX_SLOW_TASKS:
            continue
        before = monitor.best_score
        monitor.offer(planner_named(name)(problem, goal, monitor))
        if monitor.best is not None and (before is None or monitor.best_score != before):
            best = Candidate(monitor.best, name)
    return best
