"""A planner's own best order, the ticks that its goal allows, and sums over intervals."""

from __future__ import annotations

import numpy as np
import pytest

from planner.problem import liveness
from planner.problem.best_order import BestOrder
from planner.problem.columns import sum_over_intervals, true_intervals
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Score
from tests.planner.drawn import drawn


def test_the_best_order_of_a_planner_need_not_be_the_best_of_the_monitor():
    scores = {0: Score(0, 3, 9), 1: Score(0, 5, 9), 2: Score(0, 4, 9), 3: Score(0, 4, 9)}
    orders = [np.array([k]) for k in range(4)]
    monitor = Monitor(lambda order: scores[int(order[0])])
    monitor.offer(orders[0])
    best = BestOrder.offered(monitor, orders[1])
    assert [best.offer(order).cost for order in orders[2:]] == [4, 4]
    assert best.order is orders[2] and best.score == scores[2]  # of equals the first
    assert monitor.best is orders[0]


@pytest.mark.parametrize(("max_overhead", "limit"), [(None, 110), (0.0, 100), (0.5, 150)])
def test_without_a_budget_an_order_has_room_for_more_bytes_only_above_the_cost_limit(max_overhead, limit):
    problem = drawn("a>b b>c c>d", cost=dict.fromkeys("abcd", 25))
    goal = Goal(max_overhead=max_overhead)
    assert goal.cost_limit(problem) == limit
    assert not goal.has_room(problem, Score(7, limit, 7)) and goal.has_room(problem, Score(7, limit + 1, 7))


def test_with_a_budget_an_order_has_room_for_more_bytes_where_it_fits():
    problem = drawn("a>b b>c c>d")
    highest = liveness.peak(problem, np.arange(4))
    for budget, has_room in ((highest, True), (highest - 1, False)):
        goal = Goal(budget_bytes=budget)
        assert goal.has_room(problem, liveness.score(problem, np.arange(4), budget)) is has_room


@pytest.mark.parametrize("seed", range(5))
def test_sums_over_intervals_are_those_counted_place_by_place(seed: int):
    rng = np.random.default_rng(seed)
    start, amount = rng.integers(0, 9, 12), rng.integers(-5, 50, 12)
    stop = start + rng.integers(0, 9 - start + 1)
    expected = [int(amount[(start <= place) & (place < stop)].sum()) for place in range(9)]
    assert sum_over_intervals(start, stop, amount, 9).tolist() == expected


@pytest.mark.parametrize(
    ("mask", "expected"), [("", []), ("0", []), ("1", [(0, 1)]), ("0110", [(1, 3)]), ("1101", [(0, 2), (3, 4)])]
)
def test_true_intervals_are_as_long_as_possible(mask: str, expected: list[tuple[int, int]]) -> None:
    assert true_intervals(np.array([digit == "1" for digit in mask], bool)) == expected
