"""The best order that one planner has found, beside the monitor's, which may come from another planner."""

from __future__ import annotations

from dataclasses import dataclass

from planner.problem.monitor import Monitor
from planner.problem.plan import Order, Score


@dataclass(slots=True)
class BestOrder:
    """The best order offered here so far, by the monitor's score; of equals the first."""

    monitor: Monitor
    order: Order
    score: Score

    @classmethod
    def offered(cls, monitor: Monitor, order: Order) -> BestOrder:
        """Begin with an order, which is offered to the monitor."""
        return cls(monitor, order, monitor.offer(order))

    def offer(self, order: Order) -> Score:
        """The order's score; offer the order to the monitor too."""
        score = self.monitor.offer(order)
        if score < self.score:
            self.order, self.score = order, score
        return score
