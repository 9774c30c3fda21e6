"""Improvers on a core that would be idle: `blocks`, then a walk from the best order of both cores.

core 0   moment ─────────────── anneal, walk 0
core 1   blocks ── walk alone ─ anneal, walk 1       from the best order of all before

Where the order is free (`is_order_free`), the walk begins at once, and `anneal` is another one that does not end it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from planner.algorithms import planner_named
from planner.algorithms.annealing.parallel import anneal_alone
from planner.problem import Problem
from planner.problem.monitor import EarlyEnd, Monitor
from planner.problem.plan import Goal, Order, Score
from planner.search.short_turns import SHORT_TURNS

#: The improver that runs before the walk.
FIRST = "blocks"
#: Name of the walk in candidates.
WALK = "anneal"
#: Added to the seed, so that the walk is another one than those that follow.
NEXT_SEED = 1


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ImproverBeside:
    """Thread that improves the best order of `monitor`; better orders are reported by `on_progress`, from the thread.

    `found`: the best order so far with its score and planner. `latest` gives the best order known when the walk begins.
    """

    def __init__(
        self,
        problem: Problem,
        goal: Goal,
        monitor: Monitor,
        latest: Callable[[], Order | None],
        on_progress: Callable[[Order, Score], None],
        is_free: bool = False,
    ):
        assert monitor.best is not None and monitor.best_score is not None
        self._on_progress, self._planner, self._is_free = on_progress, WALK if is_free else FIRST, is_free
        self.found: tuple[Order, Score, str] = monitor.best, monitor.best_score, self._planner
        self._ended = EarlyEnd(monitor.cancel_event)
        self._walk_ended = EarlyEnd(self._ended)
        self._monitor = replace(monitor, cancel_event=self._ended, on_progress=self._report)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(problem, goal, latest), name="remat-improver", daemon=True
        )
        self._thread.start()

    def _run(self, problem: Problem, goal: Goal, latest: Callable[[], Order | None]) -> None:
        try:
            with SHORT_TURNS:
                if not self._is_free:
                    self._monitor.offer(planner_named(FIRST)(problem, goal, self._monitor))
                self._planner = WALK
                walk = replace(self._monitor, cancel_event=self._walk_ended)
                if (order := latest()) is not None:
                    walk.offer(order)
                assert walk.best is not None
                anneal_alone(problem, replace(goal, seed=goal.seed + NEXT_SEED), walk, walk.best, self._is_free)
        except BaseException as error:  # raised again where the thread is ended
            self._failure = error

    def _report(self, order: Order, score: Score) -> None:
        self.found = order, score, self._planner
        self._on_progress(order, score)

    def end_walk(self) -> None:
        """End the walk, and wait for its end; if it has not begun, it will not, and this does not wait."""
        self._walk_ended.set()
        if self._planner == WALK:
            self._thread.join()

    def end(self) -> None:
        """End the thread, and wait for its end. Raises what ended it before, if anything did."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
