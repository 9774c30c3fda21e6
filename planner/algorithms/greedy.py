"""Greedy by price: close the idle gaps that free most per tick, until the sequence fits the budget.

A gap is a buffer held between two uses. Closing it runs the producer again right before the second.
Its price is bytes times places over the limit that this frees, less what keeping the run's inputs
costs there, per tick. The limit is lowered to the budget in steps; a step that makes the peak worse
is undone; after each, runs that its limit does not need are taken out again, dearest first.
About O(k log k) time a step for k uses.
"""

from __future__ import annotations

from planner.closing import closed, trimmed
from planner.liveness import cost, peak
from planner.monitor import Monitor
from planner.plan import Goal, Order
from planner.problem import Problem
from planner.recompute import base_order

# Steps to the budget, one way after the other; the best is taken.
WAYS = (1, 10, 30, 4)
# Problems with more tasks get only as many ways as fit this many tasks altogether.
TASKS_TRIED = 25_000
# A smaller part of the peak is not worth another step down.
LEAST_STEP = 0.002


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order found within the budget, or the lowest within the overhead."""
    base = base_order(problem, goal.strict_phases)
    search = _Search(problem, monitor, base)
    if goal.budget_bytes is None:
        extra = 0.1 if goal.max_overhead is None else goal.max_overhead
        search.lowest_within(int(problem.cost.sum() * (1 + extra)))
    else:
        search.within(goal.budget_bytes)
    return search.best


class _Search:
    """One problem, and the best order so far by the monitor's score."""

    def __init__(self, problem: Problem, monitor: Monitor, base: Order):
        self.problem, self.monitor, self.base = problem, monitor, base
        self.best, self.score = base, monitor.offer(base)

    def offer(self, order: Order) -> None:
        score = self.monitor.offer(order)
        if score < self.score:
            self.best, self.score = order, score

    def within(self, budget: int) -> None:
        """Try the ways down to the budget, then on from the best to the lowest when none got there."""
        if peak(self.problem, self.base) <= budget:
            return
        ways = WAYS if len(self.base) * 2 <= TASKS_TRIED else WAYS[1:2]
        for steps in ways:
            self.offer(self.lowered(self.base, budget, steps))
            if self.monitor.should_stop():
                return
        if peak(self.problem, self.best) > budget:
            self.sink(self.best, budget, None)

    def lowered(self, order: Order, budget: int, steps: int) -> Order:
        """The order with runs added until it is within the budget, or until a step there gains nothing."""
        top = highest = peak(self.problem, order)
        for step in range(1, 2 * steps + 12):
            limit = max(budget, top - (top - budget) * step // steps)
            if highest <= limit:
                if limit == budget:
                    break
                continue
            tried = self.stepped(order, limit)
            reached = peak(self.problem, tried)
            if reached < highest:
                order, highest = tried, reached
            elif limit == budget:
                break
            if self.monitor.should_stop():
                break
        return order

    def stepped(self, order: Order, limit: int) -> Order:
        """One step down to the limit, without the runs that it does not need."""
        order = closed(self.problem, order, limit)
        return trimmed(self.problem, order, max(limit, peak(self.problem, order)))

    def sink(self, order: Order, floor: int, cost_limit: int | None) -> None:
        """Go down from the order in small steps, smaller ones where they fail, while the cost allows it."""
        highest, part = peak(self.problem, order), 0.1
        while part >= LEAST_STEP and highest > floor and not self.monitor.should_stop():
            tried = self.stepped(order, max(floor, int(highest * (1 - part))))
            reached = peak(self.problem, tried)
            if reached < highest and (cost_limit is None or cost(self.problem, tried) <= cost_limit):
                order, highest = tried, reached
                self.offer(order)
            else:
                part /= 2

    def lowest_within(self, cost_limit: int) -> None:
        """Go down as far as the cost allows, then try from the start for still less."""
        self.sink(self.base, 0, cost_limit)
        part = 0.04
        while part >= LEAST_STEP and not self.monitor.should_stop():
            highest = peak(self.problem, self.best)
            target = int(highest * (1 - part))
            tried = self.lowered(self.base, target, WAYS[1])
            if peak(self.problem, tried) < highest and cost(self.problem, tried) <= cost_limit:
                self.offer(tried)
                self.sink(self.best, 0, cost_limit)
            else:
                part /= 2
