"""What a bound on the cost is about: a problem without alternatives, a budget in bytes of the arena or live bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from graph.cancellation import unless_cancelled
from planner.bounds import claims
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.lower_bound import LowerBound
from planner.problem import Problem
from planner.problem.alternatives import relax_choices
from planner.problem.plan import Goal


@dataclass(frozen=True, eq=False, slots=True)
class CostScope:
    """What a bound on the cost is about: bytes of the arena where the runtime uses the planned addresses, else live."""

    problem: Problem  # relaxed over its alternatives; sizes are multiples of the alignment
    goal: Goal
    alignment: int  # of addresses in bytes; 1: bytes that are live at once
    quantum: int  # every cost is a multiple of so many ticks

    @classmethod
    def of(cls, formulation: Formulation) -> CostScope:
        """The scope of a formulation with a budget."""
        exact, arena, alignment = formulation.lowered.problem, formulation.in_arena_bytes(), 1
        problem, goal = exact, arena.goal
        if arena is not formulation:
            # Takeovers that only rounded sizes allow stay: alternatives may allow them, and they weaken the bound.
            problem, alignment = replace(arena.lowered.problem, takeover=exact.takeover), ALIGNMENT
            goal = replace(goal, budget_bytes=-(-(goal.budget_bytes or 0) // alignment) * alignment)
        return cls(relax_choices(problem), goal, alignment, claims.cost_quantum(exact))

    @property
    def budget_bytes(self) -> int:
        return self.goal.budget_bytes or 0

    def tighter(self, bound: LowerBound, claim: claims.Claim | None) -> LowerBound:
        """The bound with a claim about this scope if that is tighter, else the bound unchanged."""
        if claim is not None and claim["of"] == "cost":
            claim = self.of_arena(claim)
        elif self.alignment > 1:
            return bound  # claims on peaks are about live bytes
        return bound.with_claim(claim)

    def of_arena(self, claim: claims.Claim) -> claims.Claim:
        """A claim on the cost with the alignment, and with the next cost that is possible."""
        value = -(-claim["value"] // self.quantum) * self.quantum
        return {**claim, "value": value, **({"alignment": self.alignment} if self.alignment > 1 else {})}

    def improved(self, bound: LowerBound, find: Callable[[], claims.Claim | None]) -> LowerBound:
        """The bound with the claim that `find` returns if that is tighter; unchanged once cancelled."""
        return unless_cancelled(None, lambda known: self.tighter(known, find()), bound)
