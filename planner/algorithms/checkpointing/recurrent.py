"""Recurrent nets: recompute parts of the time axis by binomial schedules, √n segments or greedy gap closing.

Sources: Griewank, Walther, "Algorithm 799: Revolve", 2000; Chen, Xu, Zhang, Guestrin, 2016; Gruslys et al.,
"Memory-Efficient Backpropagation Through Time", NIPS 2016, whose policies keep hidden states, internal states of
steps, or both. Here the internal states are a body plan, chosen elsewhere; the parts are tasks, split by
`graph.recurrent.split_time` before this planner runs. Returns the best of the three.
"""

from __future__ import annotations

from planner.algorithms.checkpointing import revolve, sqrt_segments
from planner.algorithms.greedy import planner
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The best of the three planners over the parts; the base order if it meets the budget."""
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
