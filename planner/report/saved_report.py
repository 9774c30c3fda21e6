"""Verify, certify and explain a saved report from its embedded source."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph.formats.readers import load
from graph.ir import Graph
from planner.bounds import claims
from planner.errors import BadRequest, IllegalPlan
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import parse_choices
from planner.lowering.realize import node_sequence
from planner.problem.plan import Plan
from planner.report.report import explain_section, plan_metrics
from planner.report.saved_layout import with_layout
from planner.report.schema import parse_saved
from planner.request.plan_request import Request, parse_request


def verify(document: Mapping[str, Any]) -> dict[str, Any]:
    """Check a saved report independently; the report must embed its source.

    Columns, lifetimes, bytes, seconds and layout are derived from source, request and order, and compared with the
    report. Raises BadRequest for a report that cannot be checked, IllegalPlan for a wrong one.
    """
    formulation, plan = _saved_plan(document)
    claimed = document["plan"]
    _check_complete(formulation, plan.order)
    runs = node_sequence(formulation.lowered, plan)
    if [list(run) for run in runs.runs(formulation.lowered)] != [list(run) for run in claimed["order"]]:
        raise IllegalPlan("plan.order: views or run numbers do not match the order; re-plan the graph")
    if document.get("layout") is not None:
        plan = with_layout(formulation, plan, runs, document["layout"], claimed["arena_bytes"])
    formulation.check(plan)
    found = {
        "peak_bytes": formulation.counted_peak(plan),
        "seconds": plan.score.cost * formulation.lowered.problem.tick,
        "overhead": formulation.overhead(plan.score.cost),
    }
    for name, value in found.items():
        if not math.isclose(claimed[name], value, rel_tol=1e-9, abs_tol=1e-12):
            raise IllegalPlan(f"plan.{name}: the report says {claimed[name]}, the order gives {value}")
    _check_figures(document, formulation)
    steps = (runs.step_bytes + formulation.count.counted(0)).tolist()
    if document.get("timeline") is not None and document["timeline"]["step_bytes"] != steps:
        raise IllegalPlan("timeline.step_bytes: differs from the live bytes of the order; re-plan the graph")
    return {"valid": True, **found, "steps": len(runs.nodes), "layout": document.get("layout") is not None}


def _check_complete(formulation: Formulation, order: np.ndarray) -> None:
    """Raise IllegalPlan unless every mandatory task runs."""
    problem = formulation.lowered.problem
    left_out = np.setdiff1d(np.flatnonzero(~problem.optional), order)
    if len(left_out):
        raise IllegalPlan(f"plan.order: {formulation.lowered.name_of_task(int(left_out[0]))!r} never runs")


def _check_figures(document: Mapping[str, Any], formulation: Formulation) -> None:
    """Raise IllegalPlan unless baseline, saving and status follow from the checked source and plan."""
    claimed, baseline = document["plan"], plan_metrics(formulation, formulation.baseline)
    peak, budget = claimed["peak_bytes"], claimed.get("budget_bytes")
    found = {f"baseline.{name}": (document["baseline"][name], baseline[name]) for name in ("peak_bytes", "seconds")}
    if claimed.get("saved_bytes") is not None:
        found["plan.saved_bytes"] = (claimed["saved_bytes"], baseline["peak_bytes"] - peak)
    for name, (reported, value) in found.items():
        if not math.isclose(reported, value, rel_tol=1e-9, abs_tol=1e-12):
            raise IllegalPlan(f"{name}: the report says {reported}, the source gives {value}")
    if budget and claimed.get("max_overhead") is None and (peak > budget) != (claimed["status"] == "over_budget"):
        raise IllegalPlan(f"plan.status: the report says {claimed['status']} of {peak} bytes, the budget is {budget}")


def certificate(document: Mapping[str, Any]) -> dict[str, Any]:
    """Certificate document of a report's bound, for `planner/verify/certificate.py`; the source must be embedded.

    Raises BadRequest for a report without a certificate, IllegalPlan if the bound exceeds its certificate.
    """
    request, source = parse_embedded(document)
    formulation = formulate(source, request)
    bound = document["plan"].get("bound") or {}
    given = bound.get("certificate", {}).get("claims", [])
    if not given:
        raise BadRequest.one(
            "not_a_report",
            "plan.bound.certificate",
            "nothing",
            "a report whose bound has its certificate",
            "re-plan the model and save the report with -o",
        )
    shown = {"peak": 0, "cost": 0}
    for claim in given:
        if claims.applies_to(claim, formulation.goal):
            shown[claim["of"]] = max(shown[claim["of"]], claim["value"])
    found = {
        "peak_bytes": formulation.count.counted(shown["peak"]),
        "seconds": shown["cost"] * formulation.lowered.problem.tick,
    }
    for name, value in found.items():
        if bound[name] > value * (1 + 1e-9):
            raise IllegalPlan(f"plan.bound.{name}: the report says {bound[name]}, its certificate {value}")
    return claims.certificate_document(formulation.lowered.problem, list(given))


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One entry of a plan's order."""

    node: str
    op: str
    phase: str  # forward, backward or update
    run: int  # counts from 0; above 0: a recomputation
    seconds: float  # predicted; 0 for a view
    bytes: int  # live at this step


def timed_steps(document: Mapping[str, Any]) -> list[TimedStep]:
    """The order of a saved plan with the time and the live bytes of each entry. Raises BadRequest, IllegalPlan."""
    formulation, plan = _saved_plan(document)
    lowered = formulation.lowered.under(plan.choices)
    entries = node_sequence(formulation.lowered, plan)
    seconds = np.append(lowered.problem.cost * lowered.problem.tick, 0.0)  # views have task -1: the zero at the end
    nodes, live = lowered.graph.nodes, entries.step_bytes + formulation.count.counted(0)
    return [
        TimedStep(name, nodes[n].op, nodes[n].phase.name.lower(), run, float(seconds[lowered.node_task[n]]), int(bytes))
        for n, (name, run), bytes in zip(entries.nodes, entries.runs(lowered), live, strict=True)
    ]


def explain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Section `explain` of a saved plan: worth of recomputations, limiting node, largest values at the peak."""
    return explain_section(*_saved_plan(document))


def _saved_plan(document: Mapping[str, Any]) -> tuple[Formulation, Plan]:
    """(formulation of the embedded source, the plan by the report's order). Raises BadRequest, IllegalPlan."""
    request, source = parse_embedded(document)
    formulation, claimed = formulate(source, request), document["plan"]
    order = np.asarray(parse_order(formulation, claimed["order"]), np.int64)
    choices = parse_choices(formulation.lowered, claimed.get("choices", ()))
    return formulation, formulation.evaluated(order, str(claimed["planner"]), choices)


def parse_embedded(document: Mapping[str, Any]) -> tuple[Request, Graph]:
    """(request, embedded source) of a report; without the request fields that only shaped the source.

    Validates the parts of the document that later functions read. Raises BadRequest if one is missing or has a wrong
    type.
    """
    parse_saved(document)
    used = {"inputs", "batch", "dims", "max", "shapes", "loss", "loss_chunks", "fuse_attention", "recipe"}
    used |= {"differentiate"}
    fields = {name: given for name, given in document["request"].items() if name not in used}
    if document["request"].get("shapes") and fields.get("budget") is not None:
        fields |= {
            "budget": document["plan"].get("budget_bytes"),
            "fraction_of": "baseline",
        }  # the share may refer to another set
    return parse_request(fields), load(json.dumps(document["source"]).encode())


def parse_order(formulation: Formulation, order: Sequence[Any]) -> list[int]:
    """Task numbers of a report's order, without its views. Raises IllegalPlan for an entry that is no node."""
    lowered = formulation.lowered
    number = {node.name: n for n, node in enumerate(lowered.graph.nodes)}
    found = []
    for place, entry in enumerate(order):
        if not isinstance(entry, (list, tuple)) or len(entry) != 2 or entry[0] not in number:
            raise IllegalPlan(f"plan.order[{place}]: {entry!r} is no run of a node of the source")
        if lowered.node_task[number[entry[0]]] >= 0:
            found.append(lowered.node_task[number[entry[0]]])
    return found
