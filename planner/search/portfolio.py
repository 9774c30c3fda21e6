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
import time
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from planner.algorithms import PLANNERS, planner_named
from planner.algorithms.annealing.parallel import anneal_alone, anneal_in_parallel, is_order_free
from planner.algorithms.exact import dijkstra
from planner.bounds import held_at_end, largest_task
from planner.problem import Problem, liveness
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.monitor import EarlyEnd, Monitor
from planner.problem.plan import Candidate, Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search.alternative_search import goal_for_choices, search_choices
from planner.search.improver_beside import WALK, ImproverBeside
from planner.search.time_slices import TimeSlices

#: Planners that "auto" runs first, in this order, the quickest first, so that an early stop has a result.
QUICK_PLANNERS = ("as_given", "greedy", "mirror", "segments", "revolve")
#: The same under a time limit, where every planner is not tried standalone as well.
QUICK_BY_CLOCK = ("as_given", "greedy", "segments", "mirror", "min_cut", "revolve")
#: Those of them that run after the first improver, each with at most such a share of the rest, if another core
#: improves an order of the others that fits the budget.
LATER_BESIDE, LATER_SHARE = ("mirror", "min_cut", "revolve"), 0.25
#: Share of the search for the quick planners.
QUICK_SHARE = 0.5
#: The same above MAX_SLOW_TASKS tasks, where `greedy` needs seconds and one improver follows.
LARGE_QUICK_SHARE = 0.8
#: Planner that runs before `greedy` by the clock while no order fits the budget, and its largest share of the time of
#: the quick planners, which `greedy` may use up: the improvers then have its order to start from.
AHEAD, AHEAD_SHARE = "segments", 0.5
#: Planners that improve the best order, each with its share of the remaining search.
IMPROVERS = (("blocks", 0.4), ("moment", 0.5), ("anneal", 1.0))
#: The same under a time limit: `moment` first, since its plans often meet the bound, which ends the search.
IMPROVERS_BY_CLOCK = (("moment", 0.4), ("blocks", 0.4), ("anneal", 1.0))
#: An improver that finds a better order goes on for so many times the time it has used, within this share of the rest.
GOES_ON, MAX_SHARE = 1.6, 0.75
#: The same while another core runs `blocks`, or a walk where the order is free.
IMPROVERS_BESIDE = (("moment", MAX_SHARE), ("anneal", 1.0))
#: Share of the remaining search for the improvers while no order fits the budget.
MISSED_SHARE = 0.5
#: Under an iteration limit the improvers start again from an order that exceeds the budget by at most this share, if it
#: takes less time than the best order within the budget.
NEAR_BUDGET = 0.02
#: Up to this many tasks, a solver runs last if no order fits the budget yet or the goal is the lowest peak.
MAX_SOLVER_TASKS = 100
#: That solver with its share of the remaining search, and the maximum share of each improver before it.
SOLVER, SHARE_BEFORE_SOLVER = ("cp_sat", 1.0), 0.7
#: `exact` runs on every choice vector if there are at most MAX_VECTORS, within EXACT_SHARE of the remaining search.
#: Up to TINY_TASKS tasks it runs before all others, which are skipped if it proves the optimum.
MAX_VECTORS, EXACT_SHARE, TINY_TASKS = 64, 0.3, 16
#: Planners that get all iterations under an iteration limit. Without the solvers, whose first node may take longer
#: than all other planners together.
STANDALONE_PLANNERS = tuple(
    dict.fromkeys((*QUICK_PLANNERS, "exact", *(name for name in PLANNERS if name not in ("milp", "cp_sat"))))
)
#: Above MAX_SLOW_TASKS tasks the SLOW_PLANNERS are skipped: a single order takes too long.
MAX_SLOW_TASKS, SLOW_PLANNERS = 20_000, ("min_cut", "revolve", "moment", "anneal")
#: Above MAX_SLOW_TASKS tasks these are skipped by the clock, at which they do not look, once an order fits the budget.
UNTIMED_PLANNERS = ("mirror",)


#: Bytes that the columns of a problem alone prove for its peak, while the problem is in use: each search looks often.
_FLOORS: WeakKeyDictionary[Problem, int] = WeakKeyDictionary()

#: Planners that ignore budgets; they use the first alternative of every group.
FIRST_ALTERNATIVES = ("as_given", "mirror")


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


def _judge_of(problem: Problem, goal: Goal, choices: Sequence[int]) -> Callable[[Order], Score]:
    return lambda order: goal_score(problem, goal, order, choices)


def search(problem: Problem, goal: Goal, planner: str, monitor: Monitor, seeds: Sequence[Candidate] = ()) -> Candidate:
    """The best order `planner` finds, or for "auto" the best of the portfolio, over all alternatives.

    `seeds` are orders that are legal under the goal, such as plans of the same problem at tighter budgets. The
    result is no worse than any of them, and "auto" continues from the best. If stopped early, returns the best so
    far, at least the order of the document.
    """
    if planner == "auto" and monitor.iterations is not None:
        return search_by_iterations(problem, goal, monitor, seeds, _search_choices)
    known, slices = _best_of(problem, goal, seeds, monitor), TimeSlices(monitor)
    if planner != "auto":
        return _better(problem, goal, known, _search_choices(problem, goal, planner, monitor))
    if problem.tasks <= TINY_TASKS:
        known = _exact_over_choices(problem, goal, or_as_given(problem, goal, known), slices)
        if monitor.is_optimal:
            return known
    if known is not None and monitor.best is None:
        monitor.best, monitor.best_score = known.order, goal_score(problem, goal, known.order, known.choices)
    part = slices.part(monitor.judge, LARGE_QUICK_SHARE if problem.tasks > MAX_SLOW_TASKS else QUICK_SHARE)
    part.on_progress = _ending_with(part, monitor, monitor.on_progress if known is None else slices.report_best)
    later = LATER_BESIDE if _has_idle_core(problem, monitor) and not len(problem.choices) else ()
    quick = tuple(name for name in QUICK_BY_CLOCK if name not in later)
    found = _better(problem, goal, known, _search_choices(problem, goal, planner, part, quick))
    if later and goal_score(problem, goal, found.order).bytes_over_budget:
        if not part.should_stop():
            found = _better(problem, goal, _search_choices(problem, goal, planner, part, later), found)
        later = ()
    slices.absorb(part)
    if monitor.cancelled:
        return found
    if problem.tasks > TINY_TASKS:
        found = _exact_over_choices(problem, goal, found, slices)
    if monitor.is_optimal:
        return found
    if goal.budget_bytes and goal_score(problem, goal, found.order, found.choices).bytes_over_budget:
        part = slices.part(monitor.judge, MISSED_SHARE)
        part.on_progress = monitor.on_progress
        found = improve(problem, goal, found, TimeSlices(part))
        slices.absorb(part)
        if goal_score(problem, goal, found.order, found.choices).bytes_over_budget:
            return found
    return improve(problem, goal, found, slices, later)


def search_by_iterations(
    problem: Problem, goal: Goal, monitor: Monitor, seeds: Sequence[Candidate], alone: Callable[..., Candidate]
) -> Candidate:
    """Result of "auto" under an iteration limit; `alone(problem, goal, name, monitor)` runs one planner.

    With an infeasible budget only the quick planners and `exact` run.
    """
    found, slices = or_as_given(problem, goal, _best_of(problem, goal, seeds, monitor)), TimeSlices(monitor)
    names = (*QUICK_PLANNERS, "exact") if is_infeasible(problem, goal, monitor.peak_bound) else STANDALONE_PLANNERS
    if problem.tasks <= TINY_TASKS:
        names = ("exact", *names)
    nearby: list[Candidate] = []
    for name in dict.fromkeys(names):
        if name in SLOW_PLANNERS and problem.tasks > MAX_SLOW_TASKS:
            continue
        best = goal_score(problem, goal, found.order, found.choices)
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
        found = _better(problem, goal, candidate, found)
        slices.absorb(part)
    found = improve(problem, goal, found, slices)
    if (near := _cheaper_near_budget(problem, goal, found, nearby)) is not None:
        found = _better(problem, goal, improve(problem, goal, near, slices), found)
    return found


def _cheaper_near_budget(
    problem: Problem, goal: Goal, found: Candidate, candidates: Sequence[Candidate]
) -> Candidate | None:
    """The cheapest candidate that exceeds the budget by at most NEAR_BUDGET; None if `found` costs no more."""
    if not goal.budget_bytes:
        return None
    cost = goal_score(problem, goal, found.order, found.choices).cost
    scored = [(goal_score(problem, goal, each.order, each.choices), each) for each in candidates]
    near = [
        (score.cost, each)
        for score, each in scored
        if 0 < score.bytes_over_budget <= NEAR_BUDGET * goal.budget_bytes and score.cost < cost
    ]
    return min(near, key=lambda pair: pair[0], default=(0, None))[1]


def or_as_given(problem: Problem, goal: Goal, known: Candidate | None) -> Candidate:
    """`known`, or the order of the document if that is as good."""
    return _better(problem, goal, known, Candidate(base_order(problem, goal.strict_phases), "as_given"))


def _best_of(problem: Problem, goal: Goal, seeds: Sequence[Candidate], monitor: Monitor) -> Candidate | None:
    """The best seed, reported as progress; None without seeds."""
    best: Candidate | None = None
    for seed in seeds:
        best = _better(problem, goal, best, seed)
    if best is not None and monitor.on_progress is not None:
        monitor.on_progress(best.order, goal_score(problem, goal, best.order, best.choices))
    return best


def _better(problem: Problem, goal: Goal, known: Candidate | None, found: Candidate) -> Candidate:
    """`found`, unless `known` scores better."""
    if known is None:
        return found
    known_score = goal_score(problem, goal, known.order, known.choices)
    return known if known_score < goal_score(problem, goal, found.order, found.choices) else found


def _exact_over_choices(problem: Problem, goal: Goal, found: Candidate, slices: TimeSlices) -> Candidate:
    """The optimum over all orders and alternatives if there are few enough, else `found`. Sets `monitor.is_optimal`."""
    counts, monitor = problem.choices.counts().tolist(), slices.monitor
    best = goal_score(problem, goal, found.order, found.choices)
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
        part = total.child(_judge_of(problem, goal, vector), EXACT_SHARE / (len(vectors) - k))
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


def _is_walked_by_clock(problem: Problem, monitor: Monitor) -> bool:
    """Whether all improvers may run, and a clock ends them."""
    return monitor.iterations is None and TINY_TASKS < problem.tasks <= MAX_SLOW_TASKS


def _has_idle_core(problem: Problem, monitor: Monitor) -> bool:
    """Whether a core would be idle that may improve orders beside the search."""
    return _is_walked_by_clock(problem, monitor) and monitor.idle_cores > 0


def improve(problem: Problem, goal: Goal, found: Candidate, slices: TimeSlices, later: Sequence[str] = ()) -> Candidate:
    """The best of `found`, of the improvers that start from it, and of the planners `later`, after the first of them.

    Those run only if a core is idle.
    """
    monitor = slices.monitor
    best = goal_score(problem, goal, found.order, found.choices)
    monitor.record_best(found.order, best)
    floor = peak_floor(problem, monitor.peak_bound)
    if goal.budget_bytes and goal.budget_bytes < floor:
        return found
    choices = found.choices
    columns, under = resolve_choices(problem, choices), goal_for_choices(problem, goal, choices)
    solved = bool(best.bytes_over_budget) and problem.tasks <= MAX_SOLVER_TASKS
    improvers: tuple[tuple[str, float], ...] = IMPROVERS_BY_CLOCK if slices.by_clock else IMPROVERS
    proven, beside, judge = EarlyEnd(monitor.cancel_event), None, _judge_of(problem, goal, choices)
    is_free = False
    if _is_walked_by_clock(problem, monitor) and not is_proven_cheapest(problem, goal, best, monitor):
        look = slices.part(judge, 1.0)
        look.on_progress = slices.report_best
        is_free = is_order_free(columns, under, look)
        slices.absorb(look)
        if look.best is not None and look.best_score is not None and look.best_score < best:
            found, best = Candidate(look.best, WALK, choices), look.best_score
    if _has_idle_core(problem, monitor):
        first, *rest = IMPROVERS_BESIDE
        improvers = (first, *((name, LATER_SHARE) for name in later), *rest)
        part = slices.part(judge, 1.0)
        part.record_best(found.order, best)

        def report(order: Order, score: Score) -> None:
            slices.report_best(order, score)
            if is_proven_cheapest(problem, goal, score, monitor):
                proven.set()

        beside = ImproverBeside(columns, under, part, lambda: monitor.best, report, is_free)
    try:
        for name, share in (*improvers, SOLVER) if solved else improvers:
            if beside is not None:
                if (name == WALK and not is_free) or name == SOLVER[0]:
                    beside.end_walk()
                found, best = _better_of(beside, found, best)
            if (name in SLOW_PLANNERS and problem.tasks > MAX_SLOW_TASKS) or is_proven_cheapest(
                problem, goal, best, monitor
            ):
                continue
            if slices.is_over() or (not goal.budget_bytes and best.bytes_over_budget <= floor):
                break
            share = min(share, SHARE_BEFORE_SOLVER) if solved and name != SOLVER[0] else share
            part = slices.part(judge, share)
            part.cancel_event = proven
            part.record_best(found.order, best)
            part.on_progress = slices.report_best if slices.by_clock else monitor.on_progress
            if slices.by_clock and share < MAX_SHARE and name not in later:
                part.on_progress = _going_on(part, slices, MAX_SHARE / share * part.seconds)
            if name == WALK and is_free:
                walk = anneal_in_parallel if beside is None else anneal_alone  # the thread of the other core walks on
                part.offer(walk(columns, under, part, found.order, is_free))
            else:
                part.offer(planner_named(name)(columns, under, part))
            slices.absorb(part)
            assert part.best is not None and part.best_score is not None
            if part.best_score < best:
                found, best = Candidate(part.best, name, choices), part.best_score
                slices.report_best(found.order, best)
    finally:
        if beside is not None:
            beside.end()
    return found if beside is None else _better_of(beside, found, best)[0]


def _ending_with(
    part: Monitor, whole: Monitor, report: Callable[[Order, Score], None] | None
) -> Callable[[Order, Score], None]:
    """Progress callback of a slice that ends with the whole search, which a report may have shortened."""

    def improved(order: Order, score: Score) -> None:
        if report is not None:
            report(order, score)
        part.seconds = min(part.seconds, whole.started + whole.seconds - part.started)

    return improved


def _going_on(part: Monitor, slices: TimeSlices, most: float) -> Callable[[Order, Score], None]:
    """Progress callback of a slice that goes on while it finds better orders, for at most so many seconds."""

    def improved(order: Order, score: Score) -> None:
        slices.report_best(order, score)
        part.seconds = min(most, max(part.seconds, GOES_ON * (time.monotonic() - part.started)))

    return improved


def _better_of(beside: ImproverBeside, found: Candidate, best: Score) -> tuple[Candidate, Score]:
    """The best order of the thread so far, if it is better than `found`."""
    order, score, planner = beside.found
    return (Candidate(order, planner, found.choices), score) if score < best else (found, best)


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


def _search_choices(
    problem: Problem, goal: Goal, planner: str, monitor: Monitor, quick: Sequence[str] = QUICK_BY_CLOCK
) -> Candidate:
    """The best order over the alternatives; for "auto" of the planners `quick`."""
    if not len(problem.choices) or planner in FIRST_ALTERNATIVES:
        return _search(resolve_choices(problem), goal, planner, monitor, quick)

    def plain(columns: Problem, under: Goal, part: Monitor) -> Candidate:
        return _search(columns, under, planner, part, quick)

    return search_choices(problem, goal, monitor, plain, goal_score)


def _search(
    problem: Problem, goal: Goal, planner: str, monitor: Monitor, quick: Sequence[str] = QUICK_BY_CLOCK
) -> Candidate:
    """The best order for a problem without alternatives."""
    if planner != "auto":
        order = planner_named(planner)(problem, goal, monitor)
        score = monitor.offer(order)
        if monitor.best is not None and monitor.best_score is not None and monitor.best_score < score:
            order = monitor.best  # an earlier offer of the search is better
        return Candidate(order, planner)
    return _best_of_quick(problem, goal, monitor, quick)


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
            if problem.tasks > MAX_SLOW_TASKS:
                if name in SLOW_PLANNERS or (name in UNTIMED_PLANNERS and goal.budget_bytes and not is_missed):
                    continue
            elif name == "greedy" and is_missed:
                part = monitor.child(monitor.judge, AHEAD_SHARE)
                early[AHEAD] = planner_named(AHEAD)(problem, goal, part)
                monitor.absorb(part)
            order = planner_named(name)(problem, goal, monitor)
        monitor.offer(order)
        if monitor.best is not None and monitor.best_score != known:
            best = Candidate(monitor.best, name)
    return best
