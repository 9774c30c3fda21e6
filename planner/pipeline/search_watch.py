"""Watch of a search: better orders are reported and kept, and shorten the search for what follows it.

Large graphs are searched within a little less than the budget, so that gaps between addresses have room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from planner.formulation.formulation import Formulation
from planner.pipeline import arena_repair
from planner.pipeline.bound_beside import BoundBeside
from planner.pipeline.search_clock import SearchClock
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Order, Score

#: Share of the search for quick layouts of its orders, to reserve time for arena repair once one exceeds the budget.
LOOK_PART = 0.03
#: Share of the budget that a search by the clock leaves to gaps between addresses, with so many tasks: the arena of a
#: plan with smaller gaps needs no repair, which takes as long as a new plan.
GAPS_PART, MIN_GAPS_TASKS = 5e-4, 50_000
#: Orders of a search that are kept in case the addresses of the best do not fit.
MAX_INCUMBENTS = 5


@dataclass(eq=False, slots=True)
class SearchWatch:
    """Progress callback of one search, `improved`, which an improver beside the search may call at once."""

    formulation: Formulation
    searched: Formulation  # in bytes of the arena, with room for gaps
    room: int  # bytes of the budget left to gaps between addresses
    planner: str
    clock: SearchClock
    report: Callable[[Order, Score], None]
    cancel: threading.Event
    first_found: Sequence[Candidate] = ()  # is followed by far better plans, so that the search is not shortened for it
    beside: BoundBeside | None = None
    incumbents: list[Candidate] = field(default_factory=list)  # within the budget, best first
    is_shortened: bool = False  # whether the search left time to the repair of the arena
    monitor: Monitor = field(init=False)
    _reserved: float = 0.0  # share of the search time reserved for the repair so far
    _next_look: float = 0.0  # monotonic clock
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.monitor = self.searched.monitor(self.improved, self.cancel)

    def improved(self, order: Order, score: Score) -> None:
        """Note a better order."""
        with self._one_at_a_time:
            self._note(order, score)

    def _note(self, order: Order, score: Score) -> None:
        if self.room:
            score = score._replace(bytes_over_budget=max(0, score.bytes_over_budget - self.room))
        self.report(order, score)
        if score.bytes_over_budget or any(order is each.order for each in self.first_found):
            return
        if self.beside is not None:
            self.beside.least_cost = min(self.beside.least_cost, score.cost)
        if not len(self.searched.lowered.problem.choices):
            self.incumbents = [Candidate(order, self.planner), *self.incumbents[: MAX_INCUMBENTS - 1]]
        self.clock.leave_outside(self.monitor)
        if arena_repair.may_follow(self.formulation) and self.formulation.goal.iterations is None:
            self._reserve_for_repair(order)

    def _reserve_for_repair(self, order: Order) -> None:
        """Take time from the search if the addresses of an order exceed the budget, for the repair of the arena."""
        began = time.monotonic()
        if began < self._next_look:
            return
        more = max(0.0, arena_repair.probable_part(self.formulation, order) - self._reserved)
        self._reserved += more
        self.is_shortened |= more > 0
        self.monitor.seconds -= more * self.formulation.goal.seconds
        now = time.monotonic()
        self._next_look = now + (now - began) / LOOK_PART


def with_room_for_gaps(formulation: Formulation, seeds: Sequence[Candidate]) -> Formulation:
    """The formulation to search, with GAPS_PART less of the budget if the graph is large and that can be met.

    The budget stays whole if the baseline is within it, or if a seed is that would not be within less.
    """
    goal, budget = formulation.goal, formulation.goal.budget_bytes
    is_large = formulation.lowered.problem.tasks >= MIN_GAPS_TASKS and goal.iterations is None
    if not budget or not is_large or not arena_repair.may_follow(formulation):
        return formulation
    less = int(budget * (1 - GAPS_PART))
    if less <= formulation.bound.peak_bytes or formulation.baseline.score.peak_bytes <= budget:
        return formulation
    if any(less < formulation.plan_of(seed).score.peak_bytes <= budget for seed in seeds):
        return formulation
    return replace(formulation, goal=replace(goal, budget_bytes=less))
