"""Planners of large graphs look for a cancel between the parts of a step, and return a legal order at once."""

from __future__ import annotations

import threading

import pytest

from planner.algorithms import planner_named
from planner.problem import BACKWARD, FORWARD, Problem, liveness, recompute
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.verify.order_rules import check_order
from tests.planner.drawn import problem_of

LAYERS = 8
#: Looks at a cancel event that is set, until a planner has ended: by its loops, and those of a planner that called it.
MAX_LATER_LOOKS = 4


class SetAtLook(threading.Event):
    """Cancel event that sets itself when it is looked at for the `number`-th time."""

    def __init__(self, number: int):
        super().__init__()
        self.looks, self.number = 0, number

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks >= self.number


def forward_and_backward() -> Problem:
    """A chain of LAYERS tasks, whose results the backward tasks read from last to first."""
    reads = [[task - 1] if task else [] for task in range(LAYERS)]
    reads += [[2 * LAYERS - 1 - task, task - 1] for task in range(LAYERS, 2 * LAYERS)]
    phase = [FORWARD] * LAYERS + [BACKWARD] * LAYERS
    return problem_of(reads, [[task] for task in range(2 * LAYERS)], phase=phase)


def planned(problem: Problem, planner: str, cancel: threading.Event) -> Order:
    goal = Goal(budget_bytes=5)
    monitor = Monitor(lambda order: liveness.score(problem, order, 5), iterations=1000, cancel_event=cancel)
    return planner_named(planner)(problem, goal, monitor)


@pytest.mark.parametrize("planner", ["greedy", "segments", "mirror", "blocks"])
def test_a_cancel_at_any_look_ends_a_planner_with_a_legal_order(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "STEPS_BETWEEN_CHECKS", 1)
    problem, uncancelled = forward_and_backward(), SetAtLook(10**9)
    planned(problem, planner, uncancelled)
    for number in range(1, uncancelled.looks + 1):
        cancel = SetAtLook(number)
        order = planned(problem, planner, cancel)
        check_order(problem, Goal(budget_bytes=5), order.tolist())
        assert cancel.looks - number <= MAX_LATER_LOOKS


def test_segments_and_greedy_look_for_a_cancel_inside_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = forward_and_backward()
    rare, often = SetAtLook(10**9), SetAtLook(10**9)
    monkeypatch.setattr(recompute, "STEPS_BETWEEN_CHECKS", 10**6)
    planned(problem, "segments", rare)
    monkeypatch.setattr(recompute, "STEPS_BETWEEN_CHECKS", 1)
    planned(problem, "segments", often)
    assert often.looks >= rare.looks + problem.tasks // 2
    greedy, polls = SetAtLook(10**9), []
    genuine = Monitor.should_stop

    def should_stop(monitor: Monitor) -> bool:
        polls.append(monitor)
        return genuine(monitor)

    monkeypatch.setattr(Monitor, "should_stop", should_stop)
    planned(problem, "greedy", greedy)
    assert greedy.looks >= 2 * len(polls)
