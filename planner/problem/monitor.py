"""Search control: deadline, iteration limit, cancellation, progress callback and the best order so far."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graph.cancellation import CancellationError, Deadline
from planner.problem.plan import Order, Score


class SearchCancelled(CancellationError):
    """Cancelled while a model was being built; the search returns the best order it has."""


#: Seconds between two looks for a cancel while a kernel runs, and the tasks from which on one takes longer than that.
LOOK_SECONDS, MIN_WATCHED_TASKS = 0.01, 20_000


def is_watched(tasks: int) -> bool:
    """Whether kernels of a graph with so many tasks look for a cancel while they run."""
    return tasks >= MIN_WATCHED_TASKS


@contextmanager
def flagged_when_cancelled(tasks: int, flags: Any, place: int, check: Callable[[], None]) -> Iterator[None]:
    """Scope of a kernel of a graph with so many tasks.

    If it `is_watched`, a thread sets `flags[place]` to 1 once `check` raises. The kernel reads the flag in its loop,
    and the caller calls `check` after it, which then raises there.
    """
    if not is_watched(tasks):
        yield
        return
    has_ended = threading.Event()

    def watch() -> None:
        try:
            while not has_ended.wait(LOOK_SECONDS):
                check()
        except Exception:
            flags[place] = 1

    watcher = threading.Thread(target=watch, name="remat-cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        has_ended.set()
        watcher.join()


class EarlyEnd(threading.Event):
    """Cancel event of a part of a search: set by itself, or once `cancel` is."""

    def __init__(self, cancel: threading.Event):
        super().__init__()
        self._cancel = cancel

    def is_set(self) -> bool:
        return self._cancel.is_set() or super().is_set()


class TimeEnd(Deadline):
    """Set once a monitor is cancelled or its time is over, which may change."""

    def __init__(self, monitor: Monitor):
        super().__init__(monitor.cancel_event, math.inf)
        self._monitor = monitor

    def is_set(self) -> bool:
        return self._cancel.is_set() or not self.seconds_left()

    def seconds_left(self) -> float:
        return max(0.0, self._monitor.started + self._monitor.seconds - time.monotonic())


@dataclass(slots=True)
class CostBound:
    """A proven lower bound on the cost within the budget, shared by monitors; another thread may raise it."""

    ticks: int = 0
    is_met: bool = False  # by an order that the other thread has


@dataclass(slots=True)
class Monitor:
    """Limits of one search and its best result; every search loop polls `should_stop` and calls `offer`.

    `offer` keeps the best order by score and passes it to `on_progress`. `judge` is the shared
    evaluator, so a search never measures its own result. `cancel` is safe from another thread.
    """

    judge: Callable[[Order], Score]
    seconds: float = 10.0
    iterations: int | None = None  # limit on calls of `should_stop`; replaces the clock
    on_progress: Callable[[Order, Score], None] | None = None
    cancel_event: threading.Event = field(default_factory=threading.Event)
    best: Order | None = None
    best_score: Score | None = None
    notes: list[str] = field(default_factory=list)  # limitations of the search, for the report
    stopped_by_clock: bool = False
    started: float = field(default_factory=lambda: time.monotonic())  # looked up late: benchmarks replace the clock
    calls: int = 0
    is_optimal: bool = False  # set by an exact search that proved `best` optimal
    peak_bound: int = 0  # bytes, proven lower bound on the peak; a smaller budget is infeasible
    cost_bound: CostBound = field(default_factory=CostBound)  # reaching it ends a search
    idle_cores: int = 0  # cores that nothing else uses beside the search; by the clock only

    def should_stop(self) -> bool:
        """True once cancelled, past the deadline or with a proven optimum, or past the iteration limit.

        Counts one iteration. Under an iteration limit a proven optimum ends no planner, so that each finds what it
        finds on its own.
        """
        self.calls += 1
        if self.cancel_event.is_set():
            return True
        if self.iterations is not None:
            return self.calls > self.iterations
        best = self.best_score
        if best is not None and not best.bytes_over_budget and best.cost <= self.cost_bound.ticks:
            return True
        if self.cost_bound.is_met:
            return True  # the other thread has an order that is proven optimal
        expired = time.monotonic() - self.started > self.seconds
        self.stopped_by_clock |= expired
        return expired

    def offer(self, order: Order) -> Score:
        """The order's score; record the order if it beats the best so far."""
        score = self.judge(order)
        if self.best_score is None or score < self.best_score:
            self.best, self.best_score = order, score
            if self.on_progress is not None:
                self.on_progress(order, score)
        return score

    def progress(self) -> float:
        """Fraction of the search used up, at most 1; of the iteration limit if there is one, else of the time."""
        if self.iterations is not None:
            return min(1.0, self.calls / max(self.iterations, 1))
        return min(1.0, (time.monotonic() - self.started) / max(self.seconds, 1e-9))

    def child(self, judge: Callable[[Order], Score], fraction: float = 1.0) -> Monitor:
        """Child monitor with a fraction of the remaining time and iterations, and its own `judge`.

        Bounds and the cancel event are shared. Charge the use of the child back with `absorb`.
        """
        iterations = None if self.iterations is None else int(fraction * max(0, self.iterations - self.calls))
        seconds = fraction * max(0.0, self.seconds - (time.monotonic() - self.started))
        return Monitor(
            judge,
            seconds,
            iterations,
            None,
            self.cancel_event,
            cost_bound=self.cost_bound,
            peak_bound=self.peak_bound,
            idle_cores=self.idle_cores,
        )

    def absorb(self, child: Monitor) -> None:
        """Charge the iterations and the clock stop of a child monitor to this one."""
        self.calls += child.calls
        self.stopped_by_clock |= child.stopped_by_clock

    def record_best(self, order: Order, score: Score) -> None:
        """Record an order scored by another judge as the best so far, without comparing."""
        self.best, self.best_score = order, score
        if self.on_progress is not None:
            self.on_progress(order, score)

    def note(self, text: str) -> None:
        """Add a note for the report."""
        self.notes.append(text)

    def cancel(self) -> None:
        """Stop the search at its next poll; thread-safe."""
        self.cancel_event.set()

    def check(self) -> None:
        """Raise SearchCancelled once cancelled; polled row by row while a model is built."""
        if self.cancelled:
            raise SearchCancelled

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.cancel_event.is_set()
