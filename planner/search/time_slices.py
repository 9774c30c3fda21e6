"""Time slices: how one search is divided among the planners of the portfolio."""

from __future__ import annotations

import threading
from collections.abc import Callable

from planner.problem.monitor import Monitor
from planner.problem.plan import Order, Score


class TimeSlices:
    """Shares of the remaining time for each planner; under an iteration limit each planner gets all iterations.

    The parent monitor is charged the sum of the slices, or under an iteration limit their maximum.
    """

    def __init__(self, monitor: Monitor):
        self.monitor, self.begin = monitor, monitor.calls
        self.total = monitor.child(monitor.judge)
        self.by_clock = monitor.iterations is None
        self._reporting = threading.Lock()  # an improver on another core reports too

    def part(self, judge: Callable[[Order], Score], share: float) -> Monitor:
        """The monitor of one slice, without a best order yet."""
        return self.monitor.child(judge, share) if self.by_clock else self.total.child(judge)

    def absorb(self, part: Monitor) -> None:
        """Charge the use of a slice to the parent monitor."""
        if part.iterations is None:
            self.monitor.absorb(part)
        else:  # the last poll, which ends a slice, is not charged
            self.monitor.calls = max(self.monitor.calls, self.begin + min(part.calls, part.iterations))

    def is_over(self) -> bool:
        """Whether no further slice may start."""
        return self.monitor.should_stop() if self.by_clock else self.monitor.cancelled

    def report_best(self, order: Order, score: Score) -> None:
        """Progress callback of a slice: forward an order that beats the best of all slices."""
        with self._reporting:
            if self.monitor.best_score is None or score < self.monitor.best_score:
                self.monitor.record_best(order, score)
