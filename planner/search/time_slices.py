"""How one search is split among the planners that `auto` asks, its arms."""

from __future__ import annotations

from collections.abc import Callable

from planner.problem.monitor import Monitor
from planner.problem.plan import Order, Score


class TimeSlices:
    """Of a search by the clock each arm gets a share of what is left; of one by iterations each has all of them.

    The search counts what its arms took together, or the iterations of the one that took most.
    """

    def __init__(self, monitor: Monitor):
        self.monitor, self.begin = monitor, monitor.calls
        self.whole = monitor.beside(monitor.judge)
        self.by_clock = monitor.iterations is None

    def part(self, judge: Callable[[Order], Score], share: float) -> Monitor:
        """The monitor of one arm; it knows no order yet."""
        return self.monitor.beside(judge, share) if self.by_clock else self.whole.beside(judge)

    def spent(self, part: Monitor) -> None:
        """Count what an arm took."""
        if part.iterations is None:
            self.monitor.spent(part)
        else:  # who asks once more whether to stop took no more than there was
            self.monitor.calls = max(self.monitor.calls, self.begin + min(part.calls, part.iterations))

    def is_over(self) -> bool:
        """Whether no further arm is to begin."""
        return self.monitor.should_stop() if self.by_clock else self.monitor.cancelled

    def told(self, order: Order, score: Score) -> None:
        """Pass an arm's order on where it is better than what all arms before found."""
        if self.monitor.best_score is None or score < self.monitor.best_score:
            self.monitor.tell(order, score)
