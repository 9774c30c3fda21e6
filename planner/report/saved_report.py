"""What a finished report says of itself: checked again, and explained."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graph.formats.readers import load
from graph.ir import Graph
from planner.bounds import claims
from planner.errors import BadRequest, IllegalPlan
from planner.formulation.formulate import formulate
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.metrics import overhead, parse_choices
from planner.lowering.realize import node_sequence
from planner.report.report import explain_section, plan_metrics
from planner.report.saved_layout import with_layout
from planner.report.saved_schema import parts_of
from planner.request.plan_request import Request, parse_request
from planner.verify.checker import check


def verify(document: Mapping[str, Any]) -> dict[str, Any]:
    """What an independent check of a finished report finds; the report must embed its source.

    Everything is derived again from source, request and order: columns, lifetimes, bytes, seconds,
    layout. Raises BadRequest for a report that cannot be checked, IllegalPlan for one that is wrong.
    """
    request, source = parse_embedded(document)
    question = formulate(source, request)
    claimed = document["plan"]
    order = np.asarray(parse_order(question, claimed["order"]), np.int64)
    plan = question.evaluated(
        order, str(claimed["planner"]), parse_choices(question.lowered, claimed.get("choices", ()))
    )
    _all_there(question, order)
    runs = node_sequence(question.lowered, plan)
    if [list(run) for run in runs.runs(question.lowered)] != [list(run) for run in claimed["order"]]:
        raise IllegalPlan("plan.order: views or run numbers stand where no run shows them; plan the graph again")
    if document.get("layout") is not None:
        plan = with_layout(question, plan, runs, document["layout"], claimed["arena_bytes"])
    check(question.lowered.problem, question.goal, plan, ALIGNMENT if plan.offsets is not None else 1, question.names())
    found = {
        "peak_bytes": question.count.counted(plan.score.peak_bytes),
        "seconds": plan.score.cost * question.lowered.problem.tick,
        "overhead": overhead(plan.score.cost, question.baseline_cost),
    }
    for name, value in found.items():
        if not math.isclose(claimed[name], value, rel_tol=1e-9, abs_tol=1e-12):
            raise IllegalPlan(f"plan.{name}: the report says {claimed[name]}, the order gives {value}")
    _figures(document, question)
    steps = (runs.step_bytes + question.count.counted(0)).tolist()
    if document.get("timeline") is not None and document["timeline"]["step_bytes"] != steps:
        raise IllegalPlan("timeline.step_bytes: differs from what the order makes live; plan the graph again")
    return {"valid": True, **found, "steps": len(runs.nodes), "layout": document.get("layout") is not None}


def _all_there(question: Formulation, order: np.ndarray) -> None:
    """Raises IllegalPlan where a task that must run does not."""
    problem = question.lowered.problem
    left_out = np.setdiff1d(np.flatnonzero(~problem.optional), order)
    if len(left_out):
        raise IllegalPlan(f"plan.order: {question.lowered.name_of_task(int(left_out[0]))!r} never runs")


def _figures(document: Mapping[str, Any], question: Formulation) -> None:
    """Raises IllegalPlan where the report says another baseline, saving or status than follow from what was checked."""
    claimed, baseline = document["plan"], plan_metrics(question, question.baseline)
    peak, budget = claimed["peak_bytes"], claimed.get("budget_bytes")
    found = {f"baseline.{name}": (document["baseline"][name], baseline[name]) for name in ("peak_bytes", "seconds")}
    if claimed.get("saved_bytes") is not None:
        found["plan.saved_bytes"] = (claimed["saved_bytes"], baseline["peak_bytes"] - peak)
    for name, (said, value) in found.items():
        if not math.isclose(said, value, rel_tol=1e-9, abs_tol=1e-12):
            raise IllegalPlan(f"{name}: the report says {said}, the source gives {value}")
    if budget and claimed.get("max_overhead") is None and (peak > budget) != (claimed["status"] == "over_budget"):
        raise IllegalPlan(f"plan.status: the report says {claimed['status']} of {peak} bytes, the budget is {budget}")


def certificate(document: Mapping[str, Any]) -> dict[str, Any]:
    """The bound of a report with all that it follows from, for `certificate.py`; the report must embed its source.

    Raises BadRequest for a report without one, IllegalPlan where its bound says more than its certificate.
    """
    request, source = parse_embedded(document)
    question = formulate(source, request)
    bound = document["plan"].get("bound") or {}
    given = bound.get("certificate", {}).get("claims", [])
    if not given:
        raise BadRequest.one(
            "not_a_report",
            "plan.bound.certificate",
            "nothing",
            "a report whose bound has its certificate",
            "plan the model again and save the report with -o",
        )
    shown = {"peak": 0, "cost": 0}
    for claim in given:
        if claims.applies_to(claim, question.goal):
            shown[claim["of"]] = max(shown[claim["of"]], claim["value"])
    found = {
        "peak_bytes": question.count.counted(shown["peak"]),
        "seconds": shown["cost"] * question.lowered.problem.tick,
    }
    for name, value in found.items():
        if bound[name] > value * (1 + 1e-9):
            raise IllegalPlan(f"plan.bound.{name}: the report says {bound[name]}, its certificate {value}")
    return claims.certificate_document(question.lowered.problem, list(given))


def explain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Why a saved plan is as it is: what each repeat frees and costs, and who holds the peak."""
    request, source = parse_embedded(document)
    question = formulate(source, request)
    order = np.asarray(parse_order(question, document["plan"]["order"]), np.int64)
    claimed = document["plan"]
    choices = parse_choices(question.lowered, claimed.get("choices", ()))
    return explain_section(question, question.evaluated(order, str(claimed["planner"]), choices))


def parse_embedded(document: Mapping[str, Any]) -> tuple[Request, Graph]:
    """The request a report answers, without what only shaped its source, and that source.

    Raises BadRequest where a part is missing or of another type: what is read of the document afterwards is sound.
    """
    parts_of(document)
    used = {"inputs", "batch", "dims", "shapes", "loss", "loss_chunks", "fuse_attention", "recipe", "differentiate"}
    fields = {name: given for name, given in document["request"].items() if name not in used}
    if document["request"].get("shapes") and fields.get("budget") is not None:
        fields |= {"budget": document["plan"].get("budget_bytes"), "fraction_of": "baseline"}  # maybe of another set
    return parse_request(fields), load(json.dumps(document["source"]).encode())


def parse_order(question: Formulation, order: Sequence[Any]) -> list[int]:
    """Task numbers of a report's order; entries that are views have none."""
    lowered = question.lowered
    number = {node.name: n for n, node in enumerate(lowered.graph.nodes)}
    found = []
    for place, entry in enumerate(order):
        if not isinstance(entry, (list, tuple)) or len(entry) != 2 or entry[0] not in number:
            raise IllegalPlan(f"plan.order[{place}]: {entry!r} is no run of a node of the source")
        if lowered.node_task[number[entry[0]]] >= 0:
            found.append(lowered.node_task[number[entry[0]]])
    return found
