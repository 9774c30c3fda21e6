"""Step cut as a plan: keep the live set of the best step cut and recompute the rest when it is next read.

    a  b  c  d │ D  b  c  C  B  A          │ the step of D: {a} is kept, b and c are read later and recomputed

Where the cut leaves a choice, a tree finds the best one (without an iteration limit), or the largest are dropped until
the bytes fit. Where other steps exceed the budget, first runs are moved if they are free, and gaps closed as in
`greedy`. If the order is free, tasks that each need much memory may all be delayed, such as the weight gradients of an
unrolled recurrent net: none runs before one of them and the next can run. A cut also chooses which other tasks have run
by then.

Source: the project's own; the cut is that of `bounds/step_cut.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np

from graph.cancellation import CancellationError, cancellation_scope
from planner.algorithms.annealing.search import FIRST_RUNS_ALONE, Annealing
from planner.algorithms.annealing.temperatures import FREE_COLD
from planner.algorithms.greedy.gap_closing import GapCloser
from planner.bounds import first_of_set, step_cut
from planner.bounds.step_branch_and_bound import best_choice, leaf_limit
from planner.bounds.step_cut import StepCut
from planner.bounds.step_network import TICK_SCALE, CutPoint, StepModel, StepNetwork, reachable_from
from planner.problem import Problem
from planner.problem.monitor import Monitor, TimeEnd
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order, order_keeping_live
from planner.problem.topological import edges

# Maximum steps to which tasks are delayed, and number of best orders that are improved; by the clock one is improved
# once more than EARLY are known, and then each that is better than all before.
TIMES, CLOSED, EARLY = 30, 3, 5
# Steps of highest cost whose best choice is found by branch and bound.
EXACT_STEPS = 3
# Share of the remaining time for moving the first runs of one order.
MOVED = 0.1
# Maximum rounds of dropping further buffers after a cut, and networks solved in each.
ROUNDS, MAX_CUTS = 12, 24


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order within the budget that a cut suggests; the order of the document without one."""
    base = base_order(problem, goal.strict_phases)
    score = monitor.offer(base)
    if problem.tasks and goal.budget_bytes and score.bytes_over_budget:
        stop = TimeEnd(monitor) if monitor.iterations is None else monitor.cancel_event
        with suppress(CancellationError), cancellation_scope(stop):
            _search(problem, goal, goal.budget_bytes, monitor, base)
    assert monitor.best is not None
    return monitor.best


def _search(problem: Problem, goal: Goal, budget: int, monitor: Monitor, base: Order) -> None:
    """Offer the orders that cuts suggest, and the best ones after moving first runs and closing gaps.

    By the clock, an order that is proven optimal ends it, and some are improved before all have been tried.
    """
    by_clock, found = monitor.iterations is None, list[tuple[float, int, Order]]()
    price, lowest = _price(monitor.judge(base)), math.inf
    for number, order in enumerate(_cut(problem, goal, budget, monitor, base)):
        score = monitor.offer(order)
        before, lowest = lowest, min(lowest, price(score))
        if score.bytes_over_budget:
            found.append((price(score), score.cost, order))
        if by_clock and monitor.should_stop():
            return
        if by_clock and (number == EARLY or (number > EARLY and score.bytes_over_budget and lowest < before)):
            _improve(problem, goal, budget, monitor, found, 1)
    _improve(problem, goal, budget, monitor, found, CLOSED)


def _price(first: Score) -> Callable[[Score], float]:
    """Extra ticks of a score for each byte that it exceeds the budget less than the first score."""

    def price(score: Score) -> float:
        saved = first.bytes_over_budget - score.bytes_over_budget
        return (score.cost - first.cost) / saved if saved > 0 else math.inf

    return price


def _improve(
    problem: Problem, goal: Goal, budget: int, monitor: Monitor, found: list[tuple[float, int, Order]], count: int
) -> None:
    """Take the best (price, ticks, order) out of `found`; offer the orders with first runs moved and gaps closed."""
    found.sort(key=lambda each: each[0])
    found[:] = [each for each in found if not _is_no_better(monitor, each[1])]
    closing, best = GapCloser(problem, monitor.should_stop), found[:count]
    del found[:count]
    for _, ticks, order in best:
        if _is_no_better(monitor, ticks):
            continue
        tried = [order]
        if not goal.order_is_given and not monitor.should_stop():
            annealing = Annealing(problem, goal, monitor, FIRST_RUNS_ALONE)
            until = monitor.progress() + MOVED * (1 - monitor.progress())
            tried.append(annealing.reorder(order, budget, until, FREE_COLD))
        for order in tried:
            if monitor.offer(order).bytes_over_budget and not monitor.should_stop():
                monitor.offer(closing.reduce_to(order, budget)[0])


def _cut(problem: Problem, goal: Goal, budget: int, monitor: Monitor, base: Order) -> Iterator[Order]:
    """Orders made from the cut of one step, for the order of the document and for others.

    By the clock first one of each kind, then those of the kind with the lower price, then those of the other.
    """
    given, others = _given(problem, goal, budget, monitor, base), _others(problem, goal, budget, monitor, base)
    if monitor.iterations is not None:
        yield from given
        yield from others
        return
    price, first = _price(monitor.judge(base)), dict[Iterator[Order], float]()
    for kind in (others, given):
        for order in islice(kind, 1):
            first[kind] = price(monitor.judge(order))
            yield order
    for kind in sorted(first, key=first.__getitem__):
        yield from kind


def _given(problem: Problem, goal: Goal, budget: int, monitor: Monitor, base: Order) -> Iterator[Order]:
    """Orders made from cuts at single steps of the order of the document."""
    as_given = replace(goal, order_is_given=True)

    def is_over() -> bool:
        return monitor.progress() >= 1

    model = StepModel(problem, as_given, budget)
    for k, cut in enumerate(step_cut.best_cuts(problem, as_given, budget, EXACT_STEPS, is_over)):
        # An iteration limit does not count the leaves of a tree.
        by_clock = monitor.iterations is None and leaf_limit(model) > 1
        if by_clock and (choice := best_choice(model, cut.task)) is not None:
            yield order_keeping_live(problem, base, cut.task, choice.live)
        elif not k:
            yield order_keeping_live(problem, base, cut.task, _live(model, cut, is_over))
        if is_over():
            break


def _others(problem: Problem, goal: Goal, budget: int, monitor: Monitor, base: Order) -> Iterator[Order]:
    """Orders made from cuts of orders that delay tasks that need much memory, if the order is free."""
    as_given, price = replace(goal, order_is_given=True), _price(monitor.judge(base))
    once = problem.single_run_ticks()
    for tasks in () if goal.order_is_given else first_of_set.candidate_sets(StepModel(problem, goal, budget)):
        late, prices = _Late(problem, goal, budget, base, tasks), dict[int, float]()
        step = max(1, len(tasks) // TIMES)
        for place in _places(len(tasks), step, prices, monitor.iterations is None):
            if monitor.should_stop():
                return
            delayed = late.at(place)
            if delayed is None:
                continue
            order, task = delayed
            model = StepModel(problem, as_given, budget, order=order)
            cut = step_cut.cut_of_task(model, task)
            if cut.task >= 0 and cut.feasible and not _is_no_better(monitor, once + cut.ticks):
                kept = order_keeping_live(problem, order, task, _live(model, cut, lambda: monitor.progress() >= 1))
                prices[place] = price(monitor.judge(kept))
                yield kept


def _is_no_better(monitor: Monitor, ticks: int) -> bool:
    """By the clock: whether the best order is within the budget and takes at most so many ticks."""
    best = monitor.best_score
    return monitor.iterations is None and best is not None and not best.bytes_over_budget and best.cost <= ticks


def _places(count: int, step: int, prices: Mapping[int, float], refine: bool) -> Iterator[int]:
    """Multiples of `step` below `count`: the quarters, then always the next to the place with the lowest price so far.

    With `refine`, places between multiples too, around that one once the multiples around it are known. The caller
    adds the price of each place before it takes the next.
    """
    coarse, tried = range(0, count, step), set[int]()
    for place in dict.fromkeys(coarse[len(coarse) * k // 4] for k in (2, 1, 3)):
        tried.add(place)
        yield place
    while True:
        best = min(prices, key=prices.__getitem__, default=coarse[len(coarse) // 2])
        around = set(range(max(0, best - step), min(count, best + step + 1)))
        left = around - tried if refine and tried.issuperset(around.intersection(coarse)) else set()
        if not (left := left or set(coarse) - tried):
            return
        place = min(left, key=lambda place: (abs(place - best), place))
        tried.add(place)
        yield place


class _Late:
    """Orders that delay all of `tasks` to a common step.

    At that step one of them can run and the next but one cannot; a cut chooses which other tasks have run.
    """

    def __init__(self, problem: Problem, goal: Goal, budget: int, base: Order, tasks: list[int]):
        self.problem, self.base, self.tasks = problem, base, tasks
        self.model = StepModel(problem, goal, budget, firsts=tasks)
        after = edges(problem)
        self.rows, self.ahead = after.lists(), after.transposed(problem.tasks).lists()
        self.undone = self.model.undone
        self.now = (problem.phase == problem.phase[tasks[0]]) | (not goal.strict_phases)

    def at(self, i: int) -> tuple[Order, int] | None:
        """(order, first of the tasks in it) where tasks[: i + 1] can run and tasks[i + 2 :] cannot; else None."""
        problem, model, base, tasks = self.problem, self.model, self.base, self.tasks
        model.done = reachable_from(self.ahead, tasks[: i + 1]) & ~self.undone
        producers = model.producer[problem.reads.gather(np.array(tasks[i + 2 :], np.int64))]
        late = producers[(producers >= 0) & (self.now & ~model.done)[producers]]
        model.undone = self.undone | reachable_from(self.rows, late.tolist())
        cut = step_cut.cut_of_task(model, tasks[i])
        if cut.task < 0 or not cut.feasible:
            return None
        chosen = StepNetwork(model, tasks[i]).done(cut.price)
        done = _runnable(self.ahead, base[chosen[base]], set())
        begun = _runnable(self.ahead, base[(self.undone & self.now)[base]], set(done))
        if not begun:
            return None
        order = np.array([*done, *begun], np.int64)
        return np.append(order, base[~np.isin(base, order)]), begun[0]


def _runnable(ahead: Sequence[Sequence[int]], tasks: Order, done: set[int]) -> list[int]:
    """The tasks that can run once `done` have run, in their order."""
    found = list[int]()
    for task in tasks.tolist():
        if done.issuperset(ahead[task]):
            done.add(task)
            found.append(task)
    return found


def _live(model: StepModel, cut: StepCut, is_over: Callable[[], bool]) -> tuple[int, ...]:
    """Live buffers at the step, at low cost among the choices tried; within the budget if one of these is."""
    fixed, price, best = dict[int, int](), max(1, cut.price), None
    for _ in range(ROUNDS):
        over, within, price = _around_budget(StepNetwork(model, cut.task, fixed), price)
        fitting = over if over.bytes <= 0 else within
        if fitting.bytes <= 0 and (best is None or fitting.ticks < best.ticks):
            best = fitting
        differ = sorted(set(over.live) - set(within.live) - fixed.keys(), key=lambda b: (-model.size[b], -b))
        if over.bytes <= 0 or not differ or (best is not None and over.ticks >= best.ticks) or is_over():
            break
        excess, known = over.bytes, len(fixed)
        for b in differ:
            if model.size[b] <= excess:
                fixed[b], excess = 0, excess - int(model.size[b])
        if len(fixed) == known:
            fixed[differ[-1]] = 0
    return best.live if best is not None else within.live


def _around_budget(network: StepNetwork, price: int) -> tuple[CutPoint, CutPoint, int]:
    """(choice over the budget, choice within it, multiplier between them), as far as there are such choices."""
    max_price = network.model.max_multiplier
    over, within = network.best_at(max(1, price - 1)), network.best_at(min(price + 1, max_price))
    if over.bytes <= 0:
        over = network.best_at(1)
    if within.bytes > 0:
        within = network.best_at(max_price)
    if over.bytes > 0 >= within.bytes:
        over, within, (_, price) = _bracket_budget(network, over, within)
    return over, within, price


def _bracket_budget(
    network: StepNetwork, over: CutPoint, within: CutPoint
) -> tuple[CutPoint, CutPoint, tuple[int, int]]:
    """(best choice over the budget, best choice within it, (bound in parts of a tick, its multiplier)).

    `over` and `within` are the choices to start from, one over the budget and one within.
    """
    best = (0, 1)
    for _ in range(MAX_CUTS):
        price = TICK_SCALE * (within.ticks - over.ticks) // max(1, over.bytes - within.bytes)
        price = min(network.model.max_multiplier, max(1, price))
        choice = network.best_at(price)
        best = max(best, (choice.at(price), price))
        if choice.at(price) >= min(over.at(price), within.at(price)):
            break
        over, within = (choice, within) if choice.bytes > 0 else (over, choice)
    return over, within, best
