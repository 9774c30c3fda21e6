"""Build the report of a solve, the document `remat-report/1`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from graph.training import gradient_check
from planner.advice import advice
from planner.formulation import metrics, offloading
from planner.formulation.execution_check import EQUAL, NOT_EXECUTED, ExecutionResult
from planner.formulation.formulation import Formulation
from planner.lowering.realize import NodeSequence, node_sequence
from planner.problem.plan import Plan
from planner.report import copies as copies_report
from planner.report.plan_warnings import (
    allocator_warnings,
    arena_warnings,
    collective_warnings,
    gradient_warnings,
    host_memory_warnings,
)
from planner.request.field_kinds import NOT_IN_SUMMARY, without_proof
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named
from planner.verify import certificate

FORMAT = "remat-report/1"


@dataclass(frozen=True, eq=False, slots=True)
class ReportData:
    """Inputs of a report about one plan."""

    formulation: Formulation
    plan: Plan
    runs: NodeSequence
    mirrored: Plan  # reference plan of every report: MXNet mirroring
    executed: ExecutionResult
    warnings: tuple[str, ...]
    elapsed: Mapping[str, float]  # stage -> seconds
    stopped_by_clock: bool
    stopped: bool  # cancelled by the caller
    request: Request


def build_report(data: ReportData, model: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """The report. `model` is the identity of the planned graph; `sections` are optional sections, added last."""
    formulation, request = data.formulation, data.request
    runs, baseline = list(map(list, data.runs.runs(formulation.lowered))), baseline_metrics(formulation)
    report: dict[str, Any] = {
        "format": FORMAT,
        "id": report_id(model["hash"], request.given, runs),
        "model": dict(model),
        "runtime": request.runtime,
        "device": request.device if isinstance(request.device, str) else dict(request.device),
        "fits": _fits_device(data),
        "fits_device": _fits_device(data),
        "request": dict(request.given),
        "baseline": baseline,
        "reference": {"planner": "mirror", **_result(formulation, data.mirrored)},
        "plan": _plan(data, runs, baseline["needed_bytes"]),
        "checked": True,
        "executed": _executed(data),
        "warnings": [
            *data.warnings,
            *gradient_warnings(data.executed),
            *arena_warnings(formulation, data.plan),
            *host_memory_warnings(formulation, data.plan),
            *collective_warnings(formulation, data.plan),
        ],
        "elapsed": {stage: round(seconds, 6) for stage, seconds in data.elapsed.items()},
    }
    if runtime_named(request.runtime).caches:
        report["allocator"] = {
            side: asdict(formulation.reservation(plan))
            for side, plan in (("plan", data.plan), ("baseline", formulation.baseline))
        }
        report["warnings"] += allocator_warnings(report["allocator"]["plan"]) if report["fits"] else []
    engines, engine_warnings = _engine_sections(formulation, data.plan, request)
    report |= engines
    report["warnings"] += engine_warnings
    if "timeline" in request.returns:
        report["timeline"] = _timeline(data)
    if "layout" in request.returns and data.plan.offsets is not None:
        report["layout"] = metrics.layout_section(
            formulation.lowered, data.plan, data.runs, formulation.resident_arena_bytes(data.plan)
        )
    if "explain" in request.returns:
        report["explain"] = explain_section(formulation, data.plan)
    if "summary" in request.returns:
        report["plan"] = without_proof(report["plan"], NOT_IN_SUMMARY)
    return report | dict(sections)


def _engine_sections(formulation: Formulation, plan: Plan, request: Request) -> tuple[dict[str, Any], list[str]]:
    """(sections `copies` and `overlap` of engines side by side, warnings about those requested and not there)."""
    sections: dict[str, Any] = {}
    warnings: list[str] = []
    if formulation.may_copy:
        sections["copies"] = copies_report.copies_section(formulation, plan)
    elif request.offload and (why := offloading.why_no_copies(formulation, request)):
        warnings.append(f"the plan has no copies to the host: {why}")
    elif unused := offloading.unused_link_fields(request):
        names = ", ".join(f"device.{name}" for name in unused)
        warnings.append(f"{names}: not used without offload; add offload to plan copies to the host")
    if formulation.may_copy or formulation.overlaps:
        warnings += offloading.planner_limits(request)
    if formulation.overlaps:
        sections["overlap"] = copies_report.overlap_section(formulation, plan)
    elif request.overlap:
        why = offloading.why_no_overlap(formulation, request)
        warnings.append(f"collectives run in line with compute: {why}")
    return sections, warnings


def _executed(data: ReportData) -> dict[str, Any]:
    """Result of the execution check; `peak_bytes` is measured, null if the graph did not run at its full batch."""
    ran = data.executed
    peak = None if ran.peak_bytes is None else data.formulation.count.counted(ran.peak_bytes)
    return {**executed_section(ran), "peak_bytes": peak}


def executed_section(ran: ExecutionResult) -> dict[str, Any]:
    """Section `executed` without the measured peak."""
    return {
        "status": ran.status,
        "how": ran.how,
        "why": ran.why,
        "compared": _compared(ran),
        "gradients": None if ran.gradients is None else asdict(ran.gradients),
    }


def _compared(ran: ExecutionResult) -> str:
    """What was compared with what."""
    if ran.status == NOT_EXECUTED:
        return ""
    graphs = f"rewritten {'=' if ran.status == EQUAL else 'beside'} training graph, bit for bit"
    check = ran.gradients
    if check is None:
        return graphs
    if check.status == gradient_check.NOT_COMPARED:
        return f"{graphs}; gradients not compared: {check.why}"
    count = f"{check.directions} direction{'s' if check.directions > 1 else ''}"
    agree = check.status == gradient_check.AGREE
    error = f"relative error below {check.tolerance:.0e}" if agree else f"relative error {check.error:.0e}: different"
    return f"{graphs}; gradients beside finite differences on {count} ({error})"


def _plan(data: ReportData, runs: list[list[Any]], baseline_bytes: int) -> dict[str, Any]:
    """Section `plan`; `baseline_bytes` are those that the step needs without a plan."""
    formulation, plan, request = data.formulation, data.plan, data.request
    lowered, count = formulation.lowered, formulation.count
    result = _result(formulation, plan)
    return {
        "status": _status(data),
        "planner": plan.planner,
        "seed": plan.seed,
        "reproducible": not (data.stopped_by_clock or data.stopped),
        "stopped": data.stopped,
        "budget_bytes": formulation.budget_bytes,
        "max_overhead": formulation.goal.max_overhead,
        "counts": request.counts,
        **result,
        "peak_by": metrics.peak_by(lowered, plan, count),
        "arena_bytes": formulation.arena_bytes(plan),
        "saved_bytes": baseline_bytes - formulation.needed_bytes(plan),
        "saved": 1 - formulation.needed_bytes(plan) / baseline_bytes if baseline_bytes else 0.0,
        "bound": _bound(data),
        "gap": _gap(data),
        **_smallest_budget(data),
        "binding_node": binding_node(formulation),
        "order": runs,
        "kept": metrics.kept_values(lowered, plan),
        "recomputed": [lowered.name_of_task(task) for task in metrics.recomputed_tasks(lowered, plan)],
        "choices": metrics.choices_section(lowered, plan),
        "offloaded": offloading.copied_values(formulation),
        "needed_bytes": formulation.needed_bytes(plan),
        "within_budget": _within_budget(data),
    }


def _result(formulation: Formulation, plan: Plan) -> dict[str, Any]:
    """Peak, peak step, seconds and overhead of a plan."""
    peak = formulation.counted_peak(plan)
    return {
        "peak_bytes": peak,
        "peak_step": int(np.argmax(plan.step_bytes)) if len(plan.step_bytes) else 0,
        "seconds": plan.score.cost * formulation.lowered.problem.tick,
        "overhead": formulation.overhead(plan.score.cost),
    }


def explain_section(formulation: Formulation, plan: Plan) -> dict[str, Any]:
    """Section `explain`: worth of each recomputation, the limiting node, the largest values at both peaks."""
    return {
        "recomputed": advice.recompute_worth(formulation, plan),
        "binding": advice.limiting_node(formulation),
        "holders": metrics.peak_holders(formulation.lowered, plan),
        "baseline_holders": metrics.peak_holders(formulation.lowered, formulation.baseline),
    }


def plan_metrics(formulation: Formulation, plan: Plan) -> dict[str, Any]:
    """Peak, peak step, seconds, and the peak by category."""
    found = _result(formulation, plan)
    del found["overhead"]
    return {**found, "peak_by": metrics.peak_by(formulation.lowered, plan, formulation.count)}


def baseline_metrics(formulation: Formulation) -> dict[str, Any]:
    """Metrics of the step without a plan, with the bytes that budgets in percent and savings refer to."""
    return {**plan_metrics(formulation, formulation.baseline), "needed_bytes": formulation.baseline_bytes}


def _bound(data: ReportData) -> dict[str, Any]:
    """Proven lower bounds on time and peak, with the certificate."""
    formulation, cost = data.formulation, _cost_bound(data)
    bound = formulation.bound
    return {
        "seconds": cost * formulation.lowered.problem.tick,
        "overhead": formulation.overhead(cost),
        "peak_bytes": formulation.count.counted(bound.peak_bytes),
        "kind": bound.kind,
        "order": bound.order,
        "proof": bound.proof,
        **({"covers": "compute"} if formulation.may_copy and not formulation.overlaps else {}),
        "certificate": {"format": certificate.FORMAT, "claims": list(bound.claims)},
    }


def _cost_bound(data: ReportData) -> int:
    """Lower bound in ticks: within the budget, or for any budget if the plan is over budget."""
    bound = data.formulation.bound
    return bound.single_run_cost if data.plan.score.bytes_over_budget else bound.cost


def _is_peak_goal(data: ReportData) -> bool:
    """Whether the goal is the lowest peak, not the least time."""
    return data.formulation.goal.max_overhead is not None or data.request.lowest_peak


def _within_budget(data: ReportData) -> bool | None:
    """Whether the memory needed is within the budget and the host memory; None without a budget."""
    return None if _is_peak_goal(data) else data.formulation.is_within_budget(data.plan)


def _status(data: ReportData) -> str:
    """ "over_budget", "proven" (equal to its lower bound) or "found"."""
    formulation, score = data.formulation, data.plan.score
    if _is_peak_goal(data):
        return "proven" if score.peak_bytes == formulation.bound.peak_bytes else "found"
    if not _within_budget(data):
        return "over_budget"
    return "proven" if score.cost == formulation.bound.cost else "found"


def _gap(data: ReportData) -> float | None:
    """Distance to the lower bound: share of the peak bound, or difference of overheads; None over the budget."""
    formulation, score = data.formulation, data.plan.score
    if _is_peak_goal(data):
        floor = formulation.count.counted(formulation.bound.peak_bytes)
        return formulation.counted_peak(data.plan) / floor - 1 if floor > 0 else 0.0
    if not _within_budget(data):
        return None
    min_cost = _cost_bound(data)
    return formulation.overhead(score.cost) - formulation.overhead(min_cost)


def _smallest_budget(data: ReportData) -> dict[str, Any]:
    """Smallest budget found, if the plan needs more than the budget or the lowest peak is the goal; else null."""
    formulation = data.formulation
    misses = _status(data) == "over_budget" and formulation.bytes_over_budget(data.plan) > 0
    shown, needed = misses or data.request.lowest_peak, formulation.needed_bytes(data.plan)
    return {
        "smallest_budget_bytes": needed if shown else None,
        "smallest_budget_proven": shown and needed == formulation.count.counted(formulation.bound.peak_bytes),
    }


def binding_node(formulation: Formulation) -> str | None:
    """Node that sets the lower bound on the peak; None if the values held at the end set it."""
    task = formulation.bound.binding_task
    return formulation.lowered.name_of_task(task) if task >= 0 else None


def _fits_device(data: ReportData) -> bool:
    """Whether all bytes, with residents and reserve, fit the memory of the request or of the device."""
    formulation, plan = data.formulation, data.plan
    arena = plan.arena_bytes if formulation.places else None
    everything = max(plan.score.peak_bytes, arena or 0) + formulation.count.reserve_bytes
    return everything <= formulation.memory_bytes


def _timeline(data: ReportData) -> dict[str, Any]:
    """Section `timeline`: counted bytes of every entry, of the plan and of the baseline."""
    formulation = data.formulation
    baseline = node_sequence(formulation.lowered, formulation.baseline)
    shift = formulation.count.counted(0)
    return {
        "step_bytes": (data.runs.step_bytes + shift).tolist(),
        "baseline_step_bytes": (baseline.step_bytes + shift).tolist(),
        **copies_report.engine_rows(formulation, data.plan, data.runs),
        "holder": largest_holder(formulation, data.plan),
        "baseline_holder": largest_holder(formulation, formulation.baseline),
    }


def largest_holder(formulation: Formulation, plan: Plan) -> dict[str, Any] | None:
    """Largest counted value at the peak; None if there is none."""
    found = metrics.peak_holders(formulation.lowered, plan, 1, residents=not formulation.count.excluded_bytes)
    return {"value": found[0]["value"], "bytes": found[0]["bytes"]} if found else None


def report_id(model_hash: str, given: Mapping[str, Any], runs: list[list[Any]]) -> str:
    """Report id: a hash of model, request fields and order."""
    text = json.dumps([model_hash, dict(given), runs], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
