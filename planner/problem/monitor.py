"""Between a search and whoever waits for it: deadline, cancel, quotas, the best so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from graph.cancellation import CancellationError
from planner.problem.plan import Order, Score


class SearchCancelled(CancellationError):
    """A search was cancelled while it built what it was to solve: what it knows is its answer."""


@dataclass(slots=True)
class Monitor:
    """Asked by every search loop, told of every improvement.

    `offer` keeps the best order by score and passes it to `on_progress`; `judge` is the one
    evaluator, so a search never measures its own result. Safe to cancel from another thread.
    """

    judge: Callable[[Order], Score]
    seconds: float = 10.0
    iterations: int | None = None  # quota of `should_stop` calls; replaces the clock
    on_progress: Callable[[Order, Score], None] | None = None
    cancel_event: threading.Event = field(default_factory=threading.Event)
    best: Order | None = None
    best_score: Score | None = None
    notes: list[str] = field(default_factory=list)  # what a search could not do, for the report
    stopped_by_clock: bool = False
    started: float = field(default_factory=time.monotonic)
    calls: int = 0
    is_optimal: bool = False  # no legal order is nearer to the goal, or as near and quicker: who can tell has ended
    peak_bound: int = 0  # bytes that are proven to be needed; a budget below is out of reach
    cost_bound: int = 0  # ticks that are proven to be needed within the budget; a plan that takes no more ends a search

    def should_stop(self) -> bool:
        """True once cancelled, past the deadline, or past the quota of iterations."""
        self.calls += 1
        if self.cancel_event.is_set():
            return True
        if self.iterations is not None:
            return self.calls > self.iterations
        late = time.monotonic() - self.started > self.seconds
        self.stopped_by_clock |= late
        return late

    def offer(self, order: Order) -> Score:
        """The order's score; it is kept when it beats the best so far."""
        score = self.judge(order)
        if self.best_score is None or score < self.best_score:
            self.best, self.best_score = order, score
            if self.on_progress is not None:
                self.on_progress(order, score)
        return score

    def progress(self) -> float:
        """The share of the search that is over, at most 1; counted in iterations where those are limited."""
        if self.iterations is not None:
            return min(1.0, self.calls / max(self.iterations, 1))
        return min(1.0, (time.monotonic() - self.started) / max(self.seconds, 1e-9))

    def beside(self, judge: Callable[[Order], Score], part: float = 1.0) -> Monitor:
        """A monitor with that part of what is left, for a search that has another judge; `spent` takes it back."""
        left = None if self.iterations is None else int(part * max(0, self.iterations - self.calls))
        seconds = part * max(0.0, self.seconds - (time.monotonic() - self.started))
        return Monitor(
            judge, seconds, left, None, self.cancel_event, cost_bound=self.cost_bound, peak_bound=self.peak_bound
        )

    def spent(self, part: Monitor) -> None:
        """Count what a part of the search took."""
        self.calls += part.calls
        self.stopped_by_clock |= part.stopped_by_clock

    def tell(self, order: Order, score: Score) -> None:
        """An order that another judge scored is the best so far."""
        self.best, self.best_score = order, score
        if self.on_progress is not None:
            self.on_progress(order, score)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def cancel(self) -> None:
        self.cancel_event.set()

    def check(self) -> None:
        """Raise Cancelled once cancelled; asked row by row where a model is built."""
        if self.cancelled:
            raise SearchCancelled

    @property
    def cancelled(self) -> bool:
        return self.cancel_event.is_set()
