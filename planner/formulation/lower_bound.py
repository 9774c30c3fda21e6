"""Lower bound of a formulation on its time and its peak, as two claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.bounds import claims, held_at_end, largest_task, makespan
from planner.problem import Problem
from planner.problem.alternatives import relax_choices


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Proven lower bounds on time and on peak, with their scope and certificates."""

    cost: int  # ticks, within the budget if there is one
    single_run_cost: int  # ticks of one run of every task, for any budget
    peak_bytes: int  # the planner's bytes
    kind: str
    order: str  # "free" or "given"
    proof: str  # "certified" or "solver"
    binding_task: int  # task that sets the peak bound; -1: the values held at the end set it
    claims: tuple[dict[str, Any], ...] = ()  # (peak claim, cost claim), each with its certificate

    @classmethod
    def without_search(cls, problem: Problem, overlaps: bool = False) -> LowerBound:
        """Every task runs at least once; the peak holds the largest task and the final values.

        With `overlaps` the bound on time is that on the makespan of engines side by side.
        """
        relaxed = relax_choices(problem)
        task, end = largest_task.bound(relaxed), held_at_end.bound(relaxed)
        once = makespan.bound(relaxed) if overlaps else relaxed.single_run_ticks()
        peak = largest_task.claim(task) if task.bytes >= end else held_at_end.claim(end)
        cost = claims.makespan_claim(once) if overlaps else claims.single_run_claim(once)
        return cls.of_claims(peak, cost, once)

    @classmethod
    def of_claims(
        cls, peak: dict[str, Any], cost: dict[str, Any], single_run_cost: int, proof: str = "solver"
    ) -> LowerBound:
        """The bound that the two claims state; kind and order are those of the claim on cost if that cuts at steps."""
        shown = cost if cost["moments"] else peak
        return cls(
            cost["value"],
            single_run_cost,
            peak["value"],
            shown["kind"],
            shown["order"],
            proof,
            peak["moments"][0] if peak["moments"] else -1,
            (peak, cost),
        )

    def with_claim(self, claim: dict[str, Any] | None) -> LowerBound:
        """The bound with `claim` if that is tighter, else the bound unchanged."""
        peak, cost = self.claims
        if claim is None or claim["value"] <= (peak if claim["of"] == "peak" else cost)["value"]:
            return self
        pair = (claim, cost) if claim["of"] == "peak" else (peak, claim)
        return LowerBound.of_claims(*pair, self.single_run_cost, self.proof)
