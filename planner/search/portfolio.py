"""Portfolio: which planners to run, with which share of the search, on one monitor that keeps the best order.

With a time limit, the quick planners share half of the time and the improvers work on their best order in the rest;
a core that would be idle improves it meanwhile (`improver_beside.py`), and then some quick planners wait for that.
An iteration limit applies to each planner separately: first each starts by itself, then each improver starts from the
best order, so that no planner of STANDALONE_PLANNERS finds a better order on its own with the same limit:

    each planner standalone ── best ──▶ blocks ── best ──▶ annealing, ...
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from planner.algorithms import BY_CLOCK, PLANNERS, planner_named
from planner.algorithms.exact import dijkstra
from planner.problem import Problem
from planner.problem.alternatives import resolve_choices
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search import improvers
from planner.search.alternative_search import goal_for_choices, search_choices
from planner.search.scores import better, goal_score, is_infeasible, is_proven_cheapest, judge_of, or_as_given, score_of
from planner.search.time_slices import TimeSlices

Plain = Callable[[Problem, Goal, Monitor], Candidate]  # searches a problem without alternatives

#: Planners that "auto" runs first, in this order, the quickest first, so that an early stop has a result.
QUICK_PLANNERS = ("as_given", "evict", "greedy", "mirror", "segments", "revolve")
#: The same under a time limit, where every planner is not tried standalone as well.
QUICK_BY_CLOCK = ("as_given", "evict", "greedy", "segments", "mirror", "min_cut", "revolve")
#: Those of them that run after the first improver if another core improves an order of the others that fits the budget.
LATER_BESIDE = ("mirror", "min_cut", "revolve")
#: Share of the search for the quick planners.
QUICK_SHARE = 0.5
#: The same above MAX_SLOW_TASKS tasks, where `greedy` needs seconds and one improver follows.
LARGE_QUICK_SHARE = 0.8
#: Planner that runs before `greedy` by the clock while no order fits the budget, and its largest share of the time of
#: the quick planners, which `greedy` may use up: the improvers then have its order to start from.
AHEAD, AHEAD_SHARE = "segments", 0.5
#: Largest share of the time of the quick planners for EVICT, which on large graphs may find nothing.
EVICT_SHARE = 0.25
#: Share of the remaining search for the improvers while no order fits the budget.
MISSED_SHARE = 0.5
#: Under an iteration limit the improvers start again from an order that exceeds the budget by at most this share, if it
#: takes less time than the best order within the budget.
NEAR_BUDGET = 0.02
#: `exact` runs on every choice vector if there are at most MAX_VECTORS, within EXACT_SHARE of the remaining search.
MAX_VECTORS, EXACT_SHARE = 64, 0.3
#: Planners that get all iterations under an iteration limit. Without the solvers, whose first node may take longer
#: than all other planners together.
STANDALONE_PLANNERS = tuple(
    dict.fromkeys((*QUICK_PLANNERS, "exact", *(name for name in PLANNERS if name not in ("milp", "cp_sat"))))
)
#: Above MAX_SLOW_TASKS tasks these are skipped by the clock, at which they do not look, once an order fits the budget.
UNTIMED_PLANNERS = ("mirror",)
#: Planners that ignore budgets; they use the first alternative of every group.
FIRST_ALTERNATIVES = ("as_given", "mirror")


def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()) -> Candidate:
    """The best order `planner` finds, or for "auto" the best of the portfolio, over all alternatives.

    `seeds` are orders that are legal under the goal, such as plans of the same problem at tighter budgets. The
    result is no worse than any of them, and "auto" continues from the best. If stopped early, returns the best so
    far, at least the order of the document.
    """
    if planner == "auto" and monitor.iterations is not None:
        return search_by_iterations(problem, goal, monitor, seeds, _alone)
    known = _best_of(problem, goal, seeds, monitor)
    if planner in BY_CLOCK and known is not None:
        monitor.best, monitor.best_score = known.order, score_of(problem, goal, known)
    if planner != "auto":
        return better(problem, goal, known, _alone(problem, goal, planner, monitor))
    return _search_by_clock(problem, goal, monitor, known)


def _search_by_clock(problem: Problem, goal: Goal, monitor: Monitor, known: Candidate | None) -> Candidate:
    """Result of "auto" under a time limit, no worse than `known`."""
    slices = TimeSlices(monitor)
    if problem.tasks <= improvers.TINY_TASKS:
        known = _exact_over_choices(problem, goal, or_as_given(problem, goal, known), slices)
        if monitor.is_optimal:
            return known
    found, later = _quick_by_clock(problem, goal, known, slices)
    if monitor.cancelled:
        return found
    if problem.tasks > improvers.TINY_TASKS:
        found = _exact_over_choices(problem, goal, found, slices)
    if monitor.is_optimal:
        return found
    if goal.budget_bytes and score_of(problem, goal, found).bytes_over_budget:
        part = slices.part(monitor.judge, MISSED_SHARE)
        part.on_progress = monitor.on_progress
        found = improvers.improve(problem, goal, found, TimeSlices(part))
        slices.absorb(part)
        if score_of(problem, goal, found).bytes_over_budget:
            return found
    return improvers.improve(problem, goal, found, slices, later)


def _quick_by_clock(
    problem: Problem, goal: Goal, known: Candidate | None, slices: TimeSlices
) -> tuple[Candidate, Sequence[str]]:
    """(the best of `known` and the quick planners, those of them that wait for the first improver)."""
    monitor = slices.monitor
    if known is not None and monitor.best is None:
        monitor.best, monitor.best_score = known.order, score_of(problem, goal, known)
    part = slices.part(monitor.judge, LARGE_QUICK_SHARE if problem.tasks > improvers.MAX_SLOW_TASKS else QUICK_SHARE)
    part.on_progress = _ending_with(part, monitor, monitor.on_progress if known is None else slices.report_best)
    later = LATER_BESIDE if improvers.has_idle_core(problem, monitor) and not len(problem.choices) else ()
    first = [name for name in QUICK_BY_CLOCK if name not in later]
    found = better(problem, goal, known, _quick(problem, goal, part, first))
    if later and score_of(problem, goal, found).bytes_over_budget:
        if not part.should_stop():
            found = better(problem, goal, _quick(problem, goal, part, later), found)
        later = ()
    slices.absorb(part)
    return found, later


def search_by_iterations(
    problem: Problem, goal: Goal, monitor: Monitor, seeds: Sequence[Candidate], alone: Callable[..., Candidate]
) -> Candidate:
    """Result of "auto" under an iteration limit; `alone(problem, goal, name, monitor)` runs one planner.

    With an infeasible budget only the quick planners and `exact` run.
    """
    found, slices = or_as_given(problem, goal, _best_of(problem, goal, seeds, monitor)), TimeSlices(monitor)
    names = (*QUICK_PLANNERS, "exact") if is_infeasible(problem, goal, monitor.peak_bound) else STANDALONE_PLANNERS
    if problem.tasks <= improvers.TINY_TASKS:
        names = ("exact", *names)
    nearby: list[Candidate] = []
    for name in dict.fromkeys(names):
        if improvers.is_too_slow(problem, name):
            continue
        best = score_of(problem, goal, found)
        if slices.is_over() or is_proven_cheapest(problem, goal, best, monitor):
            return found
        if name == "exact":
            found = _exact_over_choices(problem, goal, found, slices)
            if monitor.is_optimal:
                return found
        part = slices.part(monitor.judge, 1.0)
        part.on_progress = slices.report_best
        candidate = alone(problem, goal, name, part)
        nearby.append(candidate)
        found = better(problem, goal, candidate, found)
        slices.absorb(part)
    found = improvers.improve(problem, goal, found, slices)
    if (near := _cheaper_near_budget(problem, goal, found, nearby)) is not None:
        found = better(problem, goal, improvers.improve(problem, goal, near, slices), found)
    return found


def _cheaper_near_budget(
    problem: Problem, goal: Goal, found: Candidate, candidates: Sequence[Candidate]
) -> Candidate | None:
    """The cheapest candidate that exceeds the budget by at most NEAR_BUDGET; None if `found` costs no more."""
    if not goal.budget_bytes:
        return None
    cost = score_of(problem, goal, found).cost
    scored = [(score_of(problem, goal, each), each) for each in candidates]
    near = [
        (score.cost, each)
        for score, each in scored
        if 0 < score.bytes_over_budget <= NEAR_BUDGET * goal.budget_bytes and score.cost < cost
    ]
    return min(near, key=lambda pair: pair[0], default=(0, None))[1]


def _best_of(problem: Problem, goal: Goal, seeds: Sequence[Candidate], monitor: Monitor) -> Candidate | None:
    """The best seed, reported as progress; None without seeds."""
    best: Candidate | None = None
    for seed in seeds:
        best = better(problem, goal, best, seed)
    if best is not None and monitor.on_progress is not None:
        monitor.on_progress(best.order, score_of(problem, goal, best))
    return best


def _exact_over_choices(problem: Problem, goal: Goal, found: Candidate, slices: TimeSlices) -> Candidate:
    """The optimum over all orders and alternatives if there are few enough, else `found`. Sets `monitor.is_optimal`."""
    counts, monitor = problem.choices.counts().tolist(), slices.monitor
    best = score_of(problem, goal, found)
    monitor.record_best(found.order, best)
    if is_proven_cheapest(problem, goal, best, monitor):
        monitor.is_optimal = True
        return found
    if problem.tasks > dijkstra.MAX_TASKS or math.prod(counts) > MAX_VECTORS:
        return found
    own, total = found.choices or (0,) * len(counts), slices.part(monitor.judge, 1.0)
    vectors = sorted(itertools.product(*map(range, counts)), key=lambda vector: vector != own)
    for k, vector in enumerate(vectors):
        columns = resolve_choices(problem, vector)
        if goal.budget_bytes and not best.bytes_over_budget and columns.single_run_ticks() >= best.cost:
            continue
        part = total.child(judge_of(problem, goal, vector), EXACT_SHARE / (len(vectors) - k))
        part.offer(found.order if vector == own else base_order(columns, goal.strict_phases))
        order = dijkstra.plan(columns, goal_for_choices(problem, goal, vector), part)
        total.absorb(part)
        if (score := goal_score(problem, goal, order, vector)) < best:
            found, best = Candidate(order, "exact", vector), score
            monitor.record_best(order, score)
        if not part.is_optimal:
            break
    else:
        monitor.is_optimal = True
    slices.absorb(total)
    return found


def _ending_with(
    part: Monitor, whole: Monitor, report: Callable[[Order, Score], None] | None
) -> Callable[[Order, Score], None]:
    """Progress callback of a slice that ends with the whole search, which a report may have shortened."""

    def improved(order: Order, score: Score) -> None:
        if report is not None:
            report(order, score)
        part.seconds = min(part.seconds, whole.started + whole.seconds - part.started)

    return improved


def _over_choices(problem: Problem, goal: Goal, monitor: Monitor, plain: Plain) -> Candidate:
    """The best order over the alternatives, each by `plain`."""
    if not len(problem.choices):
        return plain(resolve_choices(problem), goal, monitor)
    return search_choices(problem, goal, monitor, plain, goal_score)


def _alone(problem: Problem, goal: Goal, planner: str, monitor: Monitor) -> Candidate:
    """The best order of one planner over the alternatives; under the first of each group if it ignores budgets."""

    def plain(columns: Problem, under: Goal, part: Monitor) -> Candidate:
        order = planner_named(planner)(columns, under, part)
        score = part.offer(order)
        if part.best is not None and part.best_score is not None and part.best_score < score:
            order = part.best  # an earlier offer of the search is better
        return Candidate(order, planner)

    if planner in FIRST_ALTERNATIVES:
        return plain(resolve_choices(problem), goal, monitor)
    return _over_choices(problem, goal, monitor, plain)


def _quick(problem: Problem, goal: Goal, monitor: Monitor, names: Sequence[str]) -> Candidate:
    """The best order of quick planners by the clock, over the alternatives."""
    return _over_choices(problem, goal, monitor, partial(_best_of_quick, names=names))


def _best_of_quick(problem: Problem, goal: Goal, monitor: Monitor, names: Sequence[str]) -> Candidate:
    """The best order of quick planners by the clock, for a problem without alternatives."""
    start = base_order(problem, goal.strict_phases) if monitor.best is None else monitor.best
    best, early = Candidate(start, "as_given"), dict[str, Order]()
    for name in names:
        known, order = monitor.best_score, early.get(name)
        if order is None:
            if known is not None and (monitor.should_stop() or is_proven_cheapest(problem, goal, known, monitor)):
                break
            is_missed = bool(goal.budget_bytes) and (known is None or known.bytes_over_budget > 0)
            is_large = problem.tasks > improvers.MAX_SLOW_TASKS
            is_untimed = is_large and name in UNTIMED_PLANNERS and bool(goal.budget_bytes) and not is_missed
            if improvers.is_too_slow(problem, name) or is_untimed:
                continue
            if name == "greedy" and is_missed and not is_large:
                early[AHEAD] = _in_part(problem, goal, monitor, AHEAD, AHEAD_SHARE)
            if name == improvers.EVICT:
                order = _in_part(problem, goal, monitor, name, EVICT_SHARE)
            else:
                order = planner_named(name)(problem, goal, monitor)
        monitor.offer(order)
        if monitor.best is not None and monitor.best_score != known:
            best = Candidate(monitor.best, name)
    return best


def _in_part(problem: Problem, goal: Goal, monitor: Monitor, name: str, share: float) -> Order:
    """The order of a planner in a share of the remaining time."""
    part = monitor.child(monitor.judge, share)
    order = planner_named(name)(problem, goal, part)
    monitor.absorb(part)
    return order
