"""What methods that tighten a bound find beside it: claims that the verifier has accepted, and a plan.

A choice of live buffers that is optimal at several steps costs as much as the bound at that point. Made an order, it
may be a plan that costs no more, and is proven optimal once the bound is as high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from planner.bounds.claims import Claim
from planner.formulation.formulation import Formulation
from planner.problem.plan import Order


@dataclass(eq=False, slots=True)
class Findings:
    """Findings of the methods for one formulation."""

    takes_orders: bool = False
    accepted: list[Claim] = field(default_factory=list)  # by the verifier
    order: Order | None = None  # the cheapest within the budget
    cost: float = math.inf  # ticks of the order

    def offer(self, arena: Formulation, order: Order, needed: float) -> None:
        """Keep the order if it is within the budget, in bytes of the arena, and costs less than `needed` ticks.

        One that costs no less than the order kept before is dropped, and each that is only a part of a plan: beside
        alternatives and engines.
        """
        if not self.takes_orders or len(arena.lowered.problem.choices) or arena.has_engines:
            return
        score = arena.evaluated(order, "").score
        if score.cost < min(needed, self.cost) and not score.bytes_over_budget:
            self.order, self.cost = order, score.cost
