"""Greedy by price: close the idle gaps that free most bytes per tick, until the order fits the budget.

A gap is the time between two uses of a buffer during which it is held. Closing it recomputes the buffer right before
the second use. The price is bytes times places over the limit that this frees, less the same for keeping the inputs of
the recomputation live, per tick. The limit is lowered to the budget in steps; a step that raises the peak is undone.
After each step, recomputations that the limit does not need are removed, most expensive first.
About O(k log k) time a step for k uses.
"""

from __future__ import annotations

from contextlib import suppress

from planner.algorithms.greedy.gap_closing import GapCloser
from planner.bounds import largest_task
from planner.problem import Problem
from planner.problem.best_order import BestOrder
from planner.problem.liveness import cost, peak
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order

# Numbers of steps of the descents to the budget; the best descent is taken.
DESCENT_STEPS = (2, 10, 20, 5)
# Limit on steps · tasks in large problems.
TASK_STEPS = 250_000
# A descent ends after this many successive steps without gain.
MAX_IDLE_STEPS = 3
# Minimum step, as a fraction of the peak.
MIN_STEP = 0.002
# Maximum share of another planner's search for computing its initial order.
START_SHARE = 0.3


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order found within the budget, or the lowest peak within the overhead."""
    base = base_order(problem, goal.strict_phases)
    search = _GreedySearch(problem, monitor, base)
    with suppress(SearchCancelled):
        if goal.budget_bytes is None:
            search.lowest_within(goal.cost_limit(problem))
        else:
            search.within(goal.budget_bytes)
    return search.best.order


def initial_order(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """Initial order of an improving planner: the monitor's best, else the result of `plan`, which is offered."""
    if monitor.best is None:
        part = monitor.child(monitor.judge, START_SHARE)
        order = plan(problem, goal, part)
        monitor.absorb(part)
        monitor.offer(order)
    assert monitor.best is not None
    return monitor.best


def sunk(problem: Problem, order: Order, floor: int, monitor: Monitor, cost_limit: int | None) -> Order:
    """The order with gaps closed until its peak is `floor` bytes or falls no further, at up to `cost_limit` ticks.

    Each step is offered to the monitor.
    """
    search = _GreedySearch(problem, monitor, order)
    search.sink(order, floor, cost_limit)
    return search.best.order


class _GreedySearch:
    """One problem, and the best order so far."""

    def __init__(self, problem: Problem, monitor: Monitor, base: Order):
        self.problem, self.monitor, self.base = problem, monitor, base
        self.closing = GapCloser(problem, monitor.should_stop, monitor.check)
        self.floor = largest_task.bound(problem).bytes
        self.best = BestOrder.offered(monitor, base)
        self.base_peak = self.best.score.peak_bytes

    def within(self, budget: int) -> None:
        """Try all descents to the budget; if none reaches it, continue from the best one to the lowest peak."""
        if self.base_peak <= budget:
            return
        if budget < self.floor:
            for steps in DESCENT_STEPS:
                self.best.offer(self.lowered(self.floor, steps))
            self.lowest_within(None)
            return
        left = TASK_STEPS // len(self.base)
        for steps in DESCENT_STEPS if left >= sum(DESCENT_STEPS) else (min(max(left, 1), 10),):
            self.best.offer(self.lowered(budget, steps))
            if self.monitor.should_stop():
                return
        if self.best.score.peak_bytes > budget:
            self.sink(self.best.order, budget, None)

    def lowered(self, budget: int, steps: int) -> Order:
        """The base order with recomputations added in `steps` steps until it fits the budget or no step helps."""
        order, top, highest, failed = self.base, self.base_peak, self.base_peak, 0
        for step in range(1, 2 * steps + 12):
            limit = max(budget, top - (top - budget) * step // steps)
            if highest <= limit:
                if limit == budget:
                    break
                continue
            tried, reached = self.closing.reduce_to(order, limit)
            if reached < highest:
                order, highest, failed = tried, reached, 0
            else:
                failed += 1
            if (failed and limit == budget) or failed > MAX_IDLE_STEPS:
                break
            if self.monitor.should_stop():
                break
        return order

    def sink(self, order: Order, floor: int, cost_limit: int | None) -> None:
        """Lower the peak from the order in small steps, smaller ones after a failure, while the cost allows it."""
        highest, part = peak(self.problem, order), 0.1
        while part >= MIN_STEP and highest > floor and not self.monitor.should_stop():
            tried, reached = self.closing.reduce_to(order, max(floor, int(highest * (1 - part))))
            if reached < highest and self.affords(tried, cost_limit):
                order, highest = tried, reached
                self.best.offer(order)
            else:
                part /= 2

    def affords(self, order: Order, cost_limit: int | None) -> bool:
        """Whether the order costs at most `cost_limit` ticks; None: no limit."""
        return cost_limit is None or cost(self.problem, order) <= cost_limit

    def lowest_within(self, cost_limit: int | None) -> None:
        """Lower the peak as far as the cost allows, then retry from the base order for still less."""
        self.sink(self.base, self.floor, cost_limit)
        self.sink(self.best.order, self.floor, cost_limit)
        part = 0.04
        while part >= MIN_STEP and not self.monitor.should_stop():
            highest = self.best.score.peak_bytes
            target = int(highest * (1 - part))
            tried = self.lowered(target, DESCENT_STEPS[1])
            if peak(self.problem, tried) < highest and self.affords(tried, cost_limit):
                self.best.offer(tried)
                self.sink(self.best.order, self.floor, cost_limit)
            else:
                part /= 2
