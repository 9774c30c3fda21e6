"""What the verifier says of a claim and of a larger one."""

from __future__ import annotations

from planner.bounds import claims
from planner.problem import Problem


def assert_accepted_and_no_more(problem: Problem, claim: claims.Claim) -> None:
    """The claim is accepted, and no value above the next multiple of the quantum (the gcd of all costs; one byte)."""
    assert claims.rejection_reason(problem, [claim]) == ""
    proven = claims.proven_value(problem, claim)
    quantum = claims.cost_quantum(problem) if claim["of"] == "cost" else 1
    assert claim["value"] <= proven < claim["value"] + quantum
    assert "is claimed" in claims.rejection_reason(problem, [{**claim, "value": proven + 1}])
