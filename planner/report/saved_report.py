"""Verify, certify and explain a saved report from its embedded source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from graph.formats.readers import load
from graph.ir import Graph
from planner.bounds import claims
from planner.errors import BadRequest, IllegalPlan
from planner.formulation import offloading
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import parse_choices
from planner.formulation.proven_bound import with_claims
from planner.lowering.copies import copy_names, copyable_buffers
from planner.lowering.realize import node_sequence
from planner.problem.plan import Plan
from planner.report.copies import COMPUTE_ENGINE, engine_rows
from planner.report.rebuilt_report import check_report
from planner.report.report import explain_section
from planner.report.saved_layout import with_layout
from planner.report.schema import parse_saved
from planner.request.plan_request import Request, parse_request


def verify(document: Mapping[str, Any]) -> dict[str, Any]:
    """Check a saved report independently; the report must embed its source.

    The independent checker and the verifier of certificates accept order, addresses and bounds; then every other field
    is derived from them and from source and request, and compared. `not_recomputed` lists the fields that a file cannot
    prove. Raises BadRequest for a report that cannot be checked, IllegalPlan for a wrong one.
    """
    request, formulation, plan = _saved_plan(document)
    claimed = document["plan"]
    _check_complete(formulation, plan.order)
    runs = node_sequence(formulation.lowered, plan)
    if [list(run) for run in runs.runs(formulation.lowered)] != [list(run) for run in claimed["order"]]:
        raise IllegalPlan("plan.order: views or run numbers do not match the order; re-plan the graph")
    layout, arena_bytes = document.get("layout"), claimed["arena_bytes"]
    if arena_bytes is None and (formulation.places or layout is not None):
        raise IllegalPlan("plan.arena_bytes: nothing, for a plan with addresses; re-plan the graph")
    if layout is not None:
        plan = with_layout(formulation, plan, runs, layout, arena_bytes)
    formulation.check(plan)
    if plan.offsets is None and arena_bytes is not None:
        if arena_bytes < formulation.counted_peak(plan):
            raise IllegalPlan(f"plan.arena_bytes: {arena_bytes} is below the peak of the order; re-plan the graph")
        plan = replace(plan, arena_bytes=arena_bytes - formulation.count.reserve_bytes)
        if formulation.has_engines:
            plan = formulation.with_host_addresses(plan)
    formulation = with_claims(formulation, _claims(document), claimed["bound"]["proof"])
    unchecked = check_report(document, request, formulation, plan, runs)
    if has_searched_budget(document["request"]):
        unchecked.append("plan.budget_bytes")
    return {
        "valid": True,
        "peak_bytes": claimed["peak_bytes"],
        "seconds": claimed["seconds"],
        "overhead": claimed["overhead"],
        "steps": len(runs.nodes),
        "layout": document.get("layout") is not None,
        "not_recomputed": unchecked,
    }


def _check_complete(formulation: Formulation, order: np.ndarray) -> None:
    """Raise IllegalPlan unless every mandatory task runs."""
    problem = formulation.lowered.problem
    left_out = np.setdiff1d(np.flatnonzero(~problem.optional), order)
    if len(left_out):
        raise IllegalPlan(f"plan.order: {formulation.lowered.name_of_task(int(left_out[0]))!r} never runs")


def certificate(document: Mapping[str, Any]) -> dict[str, Any]:
    """Certificate document of a report's bound, for `planner/verify/certificate.py`; the source must be embedded.

    Raises BadRequest for a report without a certificate, IllegalPlan if the bound exceeds its certificate.
    """
    _, formulation = _saved_formulation(document)
    bound, given = document["plan"]["bound"], _claims(document)
    proven = with_claims(formulation, given, bound["proof"]).bound
    found = {
        "peak_bytes": formulation.count.counted(proven.peak_bytes),
        "seconds": proven.cost * formulation.lowered.problem.tick,
    }
    for name, value in found.items():
        if bound[name] > value * (1 + 1e-9):
            raise IllegalPlan(f"plan.bound.{name}: the report says {bound[name]}, its certificate {value}")
    return claims.certificate_document(formulation.lowered.problem, list(given))


def _claims(document: Mapping[str, Any]) -> Sequence[claims.Claim]:
    """Claims of the certificate of a report's bound. Raises BadRequest without them."""
    given = document["plan"]["bound"].get("certificate", {}).get("claims")
    if isinstance(given, (list, tuple)) and given and all(isinstance(claim, Mapping) for claim in given):
        return given
    raise BadRequest.one(
        "not_a_report",
        "plan.bound.certificate",
        f"claims {given!r}"[:80] if given else "nothing",
        "a report whose bound has its certificate",
        "re-plan the model and save the report with -o",
    )


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One entry of a plan's order."""

    node: str
    op: str
    phase: str  # forward, backward or update
    run: int  # counts from 0; above 0: a recomputation
    start: float  # predicted, seconds from the begin of the plan
    seconds: float  # predicted; 0 for a view
    bytes: int  # live at this step
    engine: str  # compute, to_host or from_host


def timed_steps(document: Mapping[str, Any]) -> list[TimedStep]:
    """The order of a saved plan with the time and the live bytes of each entry. Raises BadRequest, IllegalPlan."""
    _, formulation, plan = _saved_plan(document)
    lowered = formulation.lowered.under(plan.choices)
    entries = node_sequence(formulation.lowered, plan)
    seconds = np.append(lowered.problem.cost * lowered.problem.tick, 0.0)  # views have task -1: the zero at the end
    nodes, live = lowered.graph.nodes, entries.step_bytes + formulation.count.counted(0)
    taken = [float(seconds[lowered.node_task[n]]) for n in entries.nodes]
    rows = engine_rows(formulation, plan, entries).get("engines")
    if rows is None:
        rows = {"start": list(accumulate(taken, initial=0.0))[:-1], "engine": [COMPUTE_ENGINE] * len(taken)}
    columns = zip(entries.nodes, entries.runs(lowered), rows["start"], taken, live, rows["engine"], strict=True)
    return [
        TimedStep(name, nodes[n].op, nodes[n].phase.name.lower(), run, start, duration, int(bytes), engine)
        for n, (name, run), start, duration, bytes, engine in columns
    ]


def explain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Section `explain` of a saved plan: worth of recomputations, limiting node, largest values at the peak."""
    return explain_with_graph(document)[0]


def explain_with_graph(document: Mapping[str, Any]) -> tuple[dict[str, Any], Graph]:
    """(section `explain` of a saved plan, its graph with the chosen alternatives and the copies)."""
    _, formulation, plan = _saved_plan(document)
    return explain_section(formulation, plan), formulation.lowered.under(plan.choices).graph


def graph_with_choices(document: Mapping[str, Any]) -> Graph:
    """The source graph of a saved plan, with the alternative of each pair of bodies. Raises BadRequest, IllegalPlan."""
    _, formulation, plan = _saved_plan(document)
    return formulation.lowered.under(plan.choices).graph


def _saved_formulation(document: Mapping[str, Any]) -> tuple[Request, Formulation]:
    """(request, formulation of the embedded source). Bodies are not planned if the report has no choices."""
    request, source = parse_embedded(document)
    return request, formulate(source, request, bodies=bool(document["plan"]["choices"]))


def _saved_plan(document: Mapping[str, Any]) -> tuple[Request, Formulation, Plan]:
    """(request, formulation of the embedded source, the plan by the report's order). Raises BadRequest, IllegalPlan."""
    request, formulation = _saved_formulation(document)
    claimed = document["plan"]
    if request.offload and not offloading.why_no_copies(formulation, request):
        formulation = _with_copies(formulation, request, claimed["order"])
    order = np.asarray(parse_order(formulation, claimed["order"]), np.int64)
    choices = parse_choices(formulation.lowered, claimed["choices"])
    return request, formulation, formulation.evaluated(order, str(claimed["planner"]), choices)


def _with_copies(formulation: Formulation, request: Request, order: Sequence[Any]) -> Formulation:
    """The formulation with the copies that a report's order names."""
    number = {copy_names(formulation.lowered.name_of_buffer(b)): b for b in copyable_buffers(formulation.lowered)}
    named = {entry[0] for entry in order if isinstance(entry, (list, tuple)) and entry}
    buffers = np.array(sorted(int(b) for names, b in number.items() if not named.isdisjoint(names)), np.int64)
    extended = offloading.with_copies_of(formulation, request, buffers, np.zeros(0, np.int64))
    return offloading.with_copies_of(formulation, request, buffers, np.asarray(parse_order(extended, order), np.int64))


def parse_embedded(document: Mapping[str, Any]) -> tuple[Request, Graph]:
    """(request, embedded source) of a report; without the request fields that only shaped the source.

    Validates the parts of the document that later functions read. Raises BadRequest if one is missing or has a wrong
    type.
    """
    parse_saved(document)
    used = {"inputs", "batch", "dims", "max", "shapes", "loss", "loss_chunks", "fuse_attention", "recipe"}
    used |= {"differentiate"}
    fields = {name: given for name, given in document["request"].items() if name not in used}
    if has_searched_budget(document["request"]):
        fields |= {"budget": document["plan"]["budget_bytes"], "fraction_of": "baseline"}
    return parse_request(fields), load(json.dumps(document["source"]).encode())


def has_searched_budget(fields: Mapping[str, Any]) -> bool:
    """Whether a request's budget is a share of what only planning finds: of another set of shapes, or of a search."""
    return fields.get("budget") is not None and bool(fields.get("shapes") or fields.get("fraction_of") == "reducible")


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
