"""Planners of large graphs look for a cancel between the parts of a step, and return a legal order at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from planner.algorithms import planner_named
from planner.algorithms.blocks import detection
from planner.algorithms.blocks import kernels as block_kernels
from planner.algorithms.greedy import gap_closing, gap_kernels, trim_kernels
from planner.algorithms.greedy.use_list_kernels import STOP
from planner.problem import BACKWARD, FORWARD, Problem, liveness, monitor
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order
from planner.problem.recompute import base_order
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
def test_a_cancel_at_any_look_ends_a_planner_with_a_legal_order(planner: str) -> None:
    problem, uncancelled = forward_and_backward(), SetAtLook(10**9)
    planned(problem, planner, uncancelled)
    for number in range(1, uncancelled.looks + 1):
        cancel = SetAtLook(number)
        order = planned(problem, planner, cancel)
        check_order(problem, Goal(budget_bytes=5), order.tolist())
        assert cancel.looks - number <= MAX_LATER_LOOKS


def test_greedy_looks_for_a_cancel_inside_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = forward_and_backward()
    greedy, polls = SetAtLook(10**9), []
    genuine = Monitor.should_stop

    def should_stop(monitor: Monitor) -> bool:
        polls.append(monitor)
        return genuine(monitor)

    monkeypatch.setattr(Monitor, "should_stop", should_stop)
    planned(problem, "greedy", greedy)
    assert greedy.looks >= 2 * len(polls)


class SetDuringKernels(threading.Event):
    """Cancel event that is set once another thread than the planner's looks at it: the one beside a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = threading.current_thread()

    def is_set(self) -> bool:
        if threading.current_thread() is not self.planner:
            self.set()
        return super().is_set()


@pytest.mark.parametrize("entry", ["close_best", "drop_runs", "enumerate_plans"])
def test_a_kernel_of_a_large_graph_ends_once_the_search_is_cancelled(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = {"close_best": gap_kernels, "drop_runs": trim_kernels, "enumerate_plans": block_kernels}
    kernels = modules[entry].KERNELS
    flags: list[int] = []

    def waiting(*arrays: Any) -> int:
        """A kernel that runs until it is told to stop."""
        flag, place = (arrays[0].stop, 0) if entry == "enumerate_plans" else (arrays[0].counters, STOP)
        while not flag[place]:
            time.sleep(0.001)
        flags.append(flag[place])
        return 0

    usual, genuine = kernels.interpreted(), type(kernels).interpreted
    monkeypatch.setattr(monitor, "MIN_WATCHED_TASKS", 1)
    monkeypatch.setattr(type(kernels), "is_compiled", lambda _: False)
    monkeypatch.setattr(
        type(kernels), "interpreted", lambda each: usual | {entry: waiting} if each is kernels else genuine(each)
    )
    problem, cancel = forward_and_backward(), SetDuringKernels()
    order = planned(problem, "blocks" if entry == "enumerate_plans" else "greedy", cancel)
    check_order(problem, Goal(budget_bytes=5), order.tolist())
    assert flags == [1] and cancel.is_set()


def test_kernels_do_nothing_once_their_flag_is_set() -> None:
    problem = forward_and_backward()
    closing = gap_closing.GapCloser(problem)
    order = base_order(problem)
    closed = closing.close_gaps(order, 5)
    assert len(closed.order) > len(order)

    def flagged(kernels: dict[str, Any], *names: str) -> dict[str, Any]:
        def kernel(name: str) -> Any:
            def stopped(table: Any, *rest: Any) -> Any:
                table.counters[STOP] = 1
                return kernels[name](table, *rest)

            return stopped

        return kernels | {name: kernel(name) for name in names}

    for fast in (False, True):
        closing.fast = fast
        usual = closing._kernels
        closing._kernels = lambda kernels, usual=usual: flagged(usual(kernels), "close_best", "drop_runs")  # type: ignore[method-assign]
        assert closing.close_gaps(order, 5).order.tolist() == order.tolist()
        assert closing.trim_repeats(closed, 10**6).order.tolist() == closed.order.tolist()
        closing._kernels = usual  # type: ignore[method-assign]
        assert len(closing.trim_repeats(closed, 10**6).order) == len(order)


def test_blocks_of_a_large_graph_are_found_with_looks_for_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, looks = forward_and_backward(), list[None]()
    detection.blocks_of(problem, True, lambda: looks.append(None))
    assert len(looks) > detection.REFINEMENT_ROUNDS
    monkeypatch.setattr(monitor, "MIN_WATCHED_TASKS", 1)
    for number in range(1, 20):
        order = planned(problem, "blocks", SetAtLook(number))
        check_order(problem, Goal(budget_bytes=5), order.tolist())
