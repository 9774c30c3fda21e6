"""Lower bound of a formulation as a saved report claims it, verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.bounds import claims
from planner.errors import IllegalPlan
from planner.formulation.formulation import Formulation
from planner.formulation.lower_bound import LowerBound
from planner.formulation.proven_bound.cost_scope import CostScope
from planner.problem.plan import Goal


def with_claims(formulation: Formulation, given: Sequence[claims.Claim], proof: str) -> Formulation:
    """The formulation with the bound that a saved report claims. Raises IllegalPlan for a claim that is not proven.

    The value must be all that the proof supports, and the scope that of the goal or of a bound without a search. A
    search that was stopped early has the claims of the formulation, with its `proof`.
    """
    problem, plain = formulation.lowered.problem, formulation.bound.claims
    if [claim.get("of") for claim in given] != ["peak", "cost"]:
        raise IllegalPlan(
            "plan.bound.certificate.claims: not a claim on the peak and one on the cost; re-plan the graph"
        )
    for k, claim in enumerate(given):
        if claim == plain[k]:
            continue
        place = f"plan.bound.certificate.claims[{k}]"
        if (formulation.overlaps or formulation.may_copy) and claim["of"] == "cost":
            raise IllegalPlan(f"{place}: not the bound of engines side by side; re-plan the graph")
        if reason := claims.rejection_reason(problem, [claim]):
            raise IllegalPlan(f"{place}: {reason}; re-plan the graph")
        if other := claims.other_scope(claim, *_scope_of_claim(formulation, claim)):
            raise IllegalPlan(f"{place}.{other}: not that of the goal; re-plan the graph")
        if (proven := claims.proven_value(problem, claim)) != claim["value"]:
            raise IllegalPlan(f"{place}.value: the report says {claim['value']}, its proof gives {proven}")
    if proof == formulation.bound.proof and list(given) == list(plain):
        return formulation
    bound = LowerBound.of_claims(given[0], given[1], formulation.bound.single_run_cost, "certified")
    return replace(formulation, bound=bound)


def _scope_of_claim(formulation: Formulation, claim: claims.Claim) -> tuple[Goal, int]:
    """(goal, largest alignment) that a saved claim may state. A claim about live bytes holds for every arena too."""
    if claim.get("alignment", 1) == 1 or not formulation.goal.budget_bytes:
        return formulation.goal, 1
    scope = CostScope.of(formulation)
    return scope.goal, scope.alignment
