"""Lower bounds as plain JSON: the columns of a problem and claims about it, the input of `certificate.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.problem import Problem
from planner.problem.plan import Goal
from planner.verify import certificate

Claim = dict[str, Any]
COLUMNS = ("cost", "workspace", "phase", "repeat", "recompute", "optional", "size", "space", "hold")
RELATIONS = ("reads", "shape_reads", "writes", "takeover", "after_every", "after_first")


def problem_columns(
    problem: Problem, engines: bool = False, check: Callable[[], None] = certificate.no_check
) -> dict[str, Any]:
    """All columns that a bound can depend on, as lists of ints; one row per alternative of a choice.

    The engines of tasks are columns of bounds on the makespan only. `check` is called before each relation.
    """
    names = (*COLUMNS, "engine") if engines else COLUMNS
    columns: dict[str, Any] = {name: getattr(problem, name).astype(np.int64).tolist() for name in names}
    for name in RELATIONS:
        check()
        columns[name] = getattr(problem, name).lists()
    table = problem.choices
    reads, (task_of, buffer_of) = table.reads.lists(), (table.tasks.pointer, table.buffers.pointer)
    columns["choices"] = [
        {
            "group": int(group),
            "tasks": [
                [int(table.tasks.index[i]), int(table.cost[i]), int(table.workspace[i]), reads[i]]
                for i in range(task_of[row], task_of[row + 1])
            ],
            "buffers": [
                [int(table.buffers.index[i]), int(table.size[i])] for i in range(buffer_of[row], buffer_of[row + 1])
            ],
        }
        for row, group in enumerate(table.group)
    ]
    return columns


def cost_quantum(problem: Problem) -> int:
    """Ticks of which the cost of every order under every alternative is a multiple."""
    return math.gcd(*problem.cost.tolist(), *problem.choices.cost.tolist()) or 1


#: Goal of claims that hold for every order.
ANY_ORDER = Goal(strict_phases=False)


def cost_claim(goal: Goal, budget_bytes: int, ticks: int, kind: str, steps: list[int], proof: dict[str, Any]) -> Claim:
    """Claim: no order within the budget takes fewer ticks. `steps`: tasks at whose first runs the proof cuts."""
    return {**_claim("cost", goal, ticks, kind, steps, proof), "budget_bytes": budget_bytes}


def single_run_claim(ticks: int) -> Claim:
    """Claim: no order takes fewer ticks than one run of every non-optional task."""
    return _claim("cost", ANY_ORDER, ticks, "every-task-once", [], {})


def makespan_claim(ticks: int) -> Claim:
    """Claim: on engines side by side, no order ends before so many ticks."""
    return _claim("cost", ANY_ORDER, ticks, certificate.MAKESPAN, [], {})


def peak_claim(
    goal: Goal, peak_bytes: int, kind: str, steps: list[int], proof: dict[str, Any], repeats: bool = True
) -> Claim:
    """Claim: no order, or with `repeats` False no order without recomputation, peaks below `peak_bytes`.

    Without `steps` the peak is that at the end of the order.
    """
    return {**_claim("peak", goal, peak_bytes, kind, steps, proof), "repeats": repeats}


def _claim(of: str, goal: Goal, value: int, kind: str, steps: list[int], proof: dict[str, Any]) -> Claim:
    order, phases = "given" if goal.order_is_given else "free", "strict" if goal.strict_phases else "mixed"
    return {
        "of": of,
        "value": int(value),
        "kind": kind,
        "order": order,
        "phases": phases,
        "repeats": True,
        "moments": [int(task) for task in steps],
        "proof": proof,
    }


def applies_to(claim: Claim, goal: Goal) -> bool:
    """Whether the claim holds for all plans of the goal. Both budgets are in live bytes, or in bytes of an arena."""
    return bool(
        claim["repeats"]
        and (claim["order"] == "free" or goal.order_is_given)
        and (claim["phases"] == "mixed" or goal.strict_phases)
        and (claim["of"] == "peak" or not claim["moments"] or claim["budget_bytes"] >= (goal.budget_bytes or 0))
    )


#: Kinds of claims whose proof a search found.
PEAK_KINDS, COST_KINDS = ("peak-cut",), ("moment-cut", "branched-moment", "first-of-some", "several-moments")


def other_scope(claim: Claim, goal: Goal, alignment: int) -> str:
    """The first field of a searched claim that states another scope than the bounds of the goal do; empty if none."""
    if claim.get("alignment", 1) != alignment:
        return "alignment"
    if claim.get("kind") not in (COST_KINDS if claim["of"] == "cost" else PEAK_KINDS):
        return "kind"
    like = _claim(claim["of"], goal, 0, "", [], {})
    if other := [name for name in ("order", "phases", "repeats") if claim.get(name) != like[name]]:
        return other[0]
    return "" if applies_to(claim, goal) else "budget_bytes"


def proven_value(problem: Problem, claim: Claim) -> int:
    """The largest value that the proof supports. Raises CertificateRejected."""
    return certificate.proven_value(certificate_document(problem, [claim])["problem"], claim)


def certificate_document(
    problem: Problem, claims: list[Claim], check: Callable[[], None] = certificate.no_check
) -> dict[str, Any]:
    """The certificate: all that a third party needs to check the claims."""
    engines = any(claim.get("kind") == certificate.MAKESPAN for claim in claims)
    return {"format": certificate.FORMAT, "problem": problem_columns(problem, engines, check), "claims": claims}


def rejection_reason(problem: Problem, claims: list[Claim], check: Callable[[], None] = certificate.no_check) -> str:
    """The verifier's reason to reject the claims; empty if it accepts them. `check` may raise to end it early."""
    try:
        certificate.verify(certificate_document(problem, claims, check), check)
    except certificate.CertificateRejected as reason:
        return str(reason)
    return ""
