"""Recurrent: which parts of a net over time are run again, by binomial schedules, even segments or gap by gap.

Sources: Griewank, Walther, "Algorithm 799: Revolve", 2000; Chen, Xu, Zhang, Guestrin, 2016; Gruslys et al.,
"Memory-Efficient Backpropagation Through Time", NIPS 2016, whose policies keep states, or what is inside
steps, or both. Here what is inside a step is a body plan, chosen outside; the parts are tasks, cut
by `graph.recurrent.split_time` before this planner is asked. It keeps the best of what the three find.
"""

from __future__ import annotations

from planner.algorithms.checkpointing import revolve, sqrt_segments
from planner.algorithms.greedy import planner
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best of three ways over the parts; the base order where that meets the budget already."""
    base = base_order(problem, goal.strict_phases)
    score = monitor.offer(base)
    if goal.budget_bytes is not None and score.bytes_over_budget == 0:
        return base
    for way in (revolve.plan, sqrt_segments.plan, planner.plan):
        if monitor.should_stop():
            break
        monitor.offer(way(problem, goal, monitor))
    assert monitor.best is not None
    return monitor.best
