"""A monitor ends a search once its best order is proven optimal."""

from __future__ import annotations

import numpy as np

from planner.problem.monitor import CostBound, Monitor, TimeEnd
from planner.problem.plan import Score


def monitored(bytes_over_budget: int, iterations: int | None = None) -> Monitor:
    """A monitor that has been offered an order of 7 ticks."""
    monitor = Monitor(lambda order: Score(bytes_over_budget, 7, 1), iterations=iterations, cost_bound=CostBound(6))
    monitor.offer(np.arange(2))
    return monitor


def test_a_bound_that_is_raised_from_outside_ends_the_search_and_its_parts():
    monitor = monitored(0)
    part = monitor.child(monitor.judge)
    part.offer(np.arange(2))
    assert not monitor.should_stop() and not part.should_stop()
    monitor.cost_bound.ticks = 7
    assert monitor.should_stop() and part.should_stop()
    assert not monitor.stopped_by_clock


def test_a_proven_order_that_another_thread_has_ends_the_search_by_the_clock():
    for iterations in (None, 5):
        monitor = monitored(0, iterations)
        monitor.cost_bound.is_met = True
        assert monitor.should_stop() == (iterations is None)


def test_a_bound_ends_no_search_for_an_order_within_the_budget():
    monitor = monitored(1)
    monitor.cost_bound.ticks = 7
    assert not monitor.should_stop()


def test_a_bound_ends_no_search_under_an_iteration_limit():
    monitor = monitored(0, iterations=5)
    monitor.cost_bound.ticks = 7
    assert [monitor.should_stop() for _ in range(6)] == [False] * 5 + [True]


def test_the_end_of_a_monitor_moves_with_its_time():
    monitor = Monitor(lambda order: Score(0, 7, 1), seconds=0.0)
    end = TimeEnd(monitor)
    assert end.is_set() and end.seconds_left() == 0
    monitor.seconds = 60.0
    assert not end.is_set() and 0 < end.seconds_left() <= 60
    monitor.cancel()
    assert end.is_set()
