"""Plans of traced steps: searched here, or read from a file and checked against the step at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.problem.plan import Candidate
from planner.report.saved_report import graph_with_choices
from planner.request.plan_request import parse_request
from remat.facade import solved, wire_fields
from remat.jax.loops.runs import scan_tasks
from remat.jax.step.buffers import in_buffers_of_results
from remat.jax.step.document import results_of, with_placed
from remat.jax.step.tasks import Task
from remat.report import Report
from remat.steps import planning
from remat.steps.errors import OtherStep
from remat.steps.planning import PlanSource

if TYPE_CHECKING:
    from remat.jax.capturing import Capture

__all__ = ["PlanSource", "plan_step", "tasks_in_order"]

#: Share of the search time left for each search: most steps need one or two.
SEARCH_SHARE = 0.6


def plan_step(captured: Capture, budget: str | float | int | None, request: Mapping[str, Any]) -> Report:
    """Plan a traced step for the device at hand. Raises BadInput, and ValueError for `offload`.

    Which values lie in buffers of results depends on the order. A plan is searched with those of the order before, and
    reported with those of its own; it is searched again, with those of both, while its own peak misses the budget. Each
    search takes a part of the time left, and all together no more than `search_seconds`. Only if scans lack the same
    alternatives with the plan's own buffers, and those are more, is the report that of the search: an upper limit.
    """
    if request.get("offload"):
        raise ValueError("plans of JAX steps copy nothing to the host; use remat.jax.policy(..., offload=True)")
    on_cpu = captured.document["annotations"]["device"] == "cpu"
    fields = {"execute": "no", "layout": "none", **({"device": "cpu-reference"} if on_cpu else {}), **request}
    fields = {**wire_fields(fields), **({} if budget is None else {"budget": budget})}
    results = results_of(captured.program)
    first = searched = in_buffers_of_results(captured.tasks, results)
    left = parse_request(fields).search_seconds
    while True:
        fields, left = {**fields, "search_seconds": SEARCH_SHARE * left}, (1 - SEARCH_SHARE) * left
        document = _json(with_placed(captured.document, first, searched))
        outcome = solved(document, fields)
        report, plan = Report(outcome), outcome.plan.candidate
        own = in_buffers_of_results(captured.tasks, results, _under_plan(captured, planning.saved_plan(report)))
        if own == searched:
            return report
        if fields.get("budget"):  # a share is of the first peak
            fields = {**fields, "budget": report.budget_bytes}
        before, document = document, _json(with_placed(captured.document, first, own))
        formulation = _formulation(document, fields)
        given = _in_another(formulation, plan, _formulation(before, fields)) if plan.choices else plan
        if given is not None:
            peak = formulation.counted_peak(formulation.plan_of(given))
            if peak <= max(report.peak_bytes, report.budget_bytes or 0):
                return Report(solved(document, {**fields, "search_seconds": left}, given=given))
        if searched <= own:  # all that the search counted on is there
            return report
        searched = searched & own


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def _formulation(document: bytes, fields: Mapping[str, Any]) -> Formulation:
    return formulate(load(document), parse_request(fields))


def _in_another(formulation: Formulation, plan: Candidate, before: Formulation) -> Candidate | None:
    """A plan made `before` in another formulation of the step; None if that lacks an alternative of a scan.

    Each formulation numbers the alternatives that it finds for bodies of scans for itself.
    """
    groups = {group.pair: group.savings for group in formulation.lowered.groups}
    chosen = [group.savings[choice] for group, choice in zip(before.lowered.groups, plan.choices, strict=True)]
    pairs = [group.pair for group in before.lowered.groups]
    if list(groups) != pairs or any(saving not in groups[pair] for pair, saving in zip(pairs, chosen, strict=True)):
        return None
    return replace(plan, choices=tuple(groups[pair].index(saving) for pair, saving in zip(pairs, chosen, strict=True)))


def tasks_in_order(captured: Capture, given: PlanSource) -> list[Task]:
    """The tasks of a plan made before, as it runs them.

    Raises:
        OtherStep: The plan was made for another step, or with another version of JAX, or is not legal.
        OSError: The file cannot be read.
    """
    saved = planning.read(given)
    made_with = (saved.get("source") or {}).get("annotations", {}).get("framework")
    own = captured.document["annotations"]["framework"]
    if made_with is not None and made_with != own:
        raise OtherStep(f"the plan was made with {made_with}, this is {own}; plan again, or install those versions")
    planning.order_for(captured.document, saved)
    return _under_plan(captured, saved)


def _under_plan(captured: Capture, saved: Mapping[str, Any]) -> list[Task]:
    """The tasks in the order of a plan; scans save and recompute what it chose for them."""
    named = {task.name: task for task in captured.tasks}
    if captured.scans:
        named |= scan_tasks(captured.program, captured.scans, graph_with_choices(saved))
    return [named[name] for name, _ in saved["plan"]["order"]]
