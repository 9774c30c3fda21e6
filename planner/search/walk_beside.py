"""A walk that a core which would be idle takes beside the improvers, from the order that they start from.

core 0   moment ───── blocks ───── anneal, walk 0
core 1   walk beside ───────────── anneal, walk 1       from the best order of all before
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from planner.algorithms.annealing.parallel import anneal_alone
from planner.problem import Problem
from planner.problem.monitor import EarlyEnd, Monitor
from planner.problem.plan import Goal, Order, Score

#: Added to the seed, so that the walk is another one than those that follow.
NEXT_SEED = 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WalkBeside:
    """Thread that anneals from an order until `end`; better orders are reported by `on_progress`, from the thread."""

    def __init__(
        self, problem: Problem, goal: Goal, monitor: Monitor, order: Order, on_progress: Callable[[Order, Score], None]
    ):
        self._ended = EarlyEnd(monitor.cancel_event)
        self.monitor = replace(monitor, cancel_event=self._ended)
        self.monitor.record_best(order, monitor.judge(order))
        self.monitor.on_progress = on_progress
        goal = replace(goal, seed=goal.seed + NEXT_SEED)
        self._thread = threading.Thread(
            target=anneal_alone, args=(problem, goal, self.monitor, order), name="remat-walk", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """End the walk, and wait for its end."""
        self._ended.set()
        self._thread.join()
