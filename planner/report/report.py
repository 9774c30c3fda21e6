"""The report of the wire contract, put together from what a solve found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.advice import advice
from planner.formulation import metrics
from planner.formulation.arena_repair import arena_bytes, arena_over_budget
from planner.formulation.execution_check import ExecutionResult
from planner.formulation.formulation import Formulation
from planner.lowering.realize import NodeSequence, node_sequence
from planner.problem.plan import Plan
from planner.request.plan_request import Request
from planner.verify import certificate

FORMAT = "remat-report/1"


@dataclass(frozen=True, eq=False, slots=True)
class ReportData:
    """Everything a report says, before it is put into words."""

    question: Formulation
    plan: Plan
    runs: NodeSequence
    mirrored: Plan  # the reference line of every report
    executed: ExecutionResult
    warnings: tuple[str, ...]
    elapsed: Mapping[str, float]
    stopped_by_clock: bool
    stopped: bool  # by the asker
    request: Request


def build_report(facts: ReportData, model: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """The figures. `model` names what was planned; `sections` are documents asked for by the request."""
    question, request = facts.question, facts.request
    runs = [list(run) for run in facts.runs.runs(question.lowered)]
    answer = {
        "format": FORMAT,
        "id": _identify(model["hash"], request.given, runs),
        "model": dict(model),
        "runtime": request.runtime,
        "device": request.device if isinstance(request.device, str) else dict(request.device),
        "fits": _fits(facts),
        "request": dict(request.given),
        "baseline": plan_metrics(question, question.baseline),
        "reference": {"planner": "mirror", **_result(question, facts.mirrored)},
        "plan": _plan(facts, runs),
        "checked": True,
        "executed": _executed(facts),
        "warnings": [*facts.warnings, *_arena_warnings(question, facts.plan)],
        "elapsed": {stage: round(seconds, 6) for stage, seconds in facts.elapsed.items()},
    }
    if "timeline" in request.returns:
        answer["timeline"] = _timeline(facts)
    if "layout" in request.returns and facts.plan.offsets is not None:
        answer["layout"] = metrics.layout_section(
            question.lowered, facts.plan, facts.runs, question.resident_arena_bytes(facts.plan)
        )
    if "explain" in request.returns:
        answer["explain"] = explain_section(question, facts.plan)
    return answer | dict(sections)


def _executed(facts: ReportData) -> dict[str, Any]:
    """What running the rewritten graph showed; the run itself counts `peak_bytes`; null: none of this size ran."""
    ran = facts.executed
    peak = None if ran.peak_bytes is None else facts.question.count.counted(ran.peak_bytes)
    return {"status": ran.status, "how": ran.how, "why": ran.why, "peak_bytes": peak}


def _arena_warnings(question: Formulation, plan: Plan) -> list[str]:
    """A warning where the peak fits the budget and the addresses found do not, by more than rounding to addresses."""
    past, budget = arena_over_budget(question, plan), question.budget_bytes
    if plan.score.bytes_over_budget or not past or not budget:
        return []
    return [
        f"the peak fits, the addresses found need {past / budget:.1%} more than the budget: layout `best` looks "
        "longer, and a budget lower by that leaves room"
    ]


def _plan(facts: ReportData, runs: list[list[Any]]) -> dict[str, Any]:
    question, plan, request = facts.question, facts.plan, facts.request
    lowered, count = question.lowered, question.count
    result = _result(question, plan)
    return {
        "status": _status(facts),
        "planner": plan.planner,
        "seed": plan.seed,
        "reproducible": not (facts.stopped_by_clock or facts.stopped),
        "stopped": facts.stopped,
        "budget_bytes": question.budget_bytes,
        "max_overhead": question.goal.max_overhead,
        "counts": request.counts,
        **result,
        "peak_by": metrics.peak_by(lowered, plan, count),
        "arena_bytes": arena_bytes(question, plan),
        "saved_bytes": count.counted(question.baseline.score.peak_bytes) - result["peak_bytes"],
        "saved": _share(question, plan),
        "bound": _bound(facts),
        "gap": _gap(facts),
        **_smallest(facts),
        "binding_node": binding_node(question),
        "order": runs,
        "kept": metrics.kept_values(lowered, plan),
        "recomputed": [lowered.name_of_task(task) for task in metrics.recomputed_tasks(lowered, plan)],
        "choices": metrics.choices_section(lowered, plan),
        "offloaded": [],
    }


def _result(question: Formulation, plan: Plan) -> dict[str, Any]:
    peak = question.count.counted(plan.score.peak_bytes)
    return {
        "peak_bytes": peak,
        "peak_step": int(np.argmax(plan.step_bytes)) if len(plan.step_bytes) else 0,
        "seconds": plan.score.cost * question.lowered.problem.tick,
        "overhead": metrics.overhead(plan.score.cost, question.baseline_cost),
    }


def explain_section(question: Formulation, plan: Plan) -> dict[str, Any]:
    """What each repeat frees and costs, which node binds, and who holds the peaks."""
    return {
        "recomputed": advice.recompute_worth(question, plan),
        "binding": advice.limiting_node(question),
        "holders": metrics.peak_holders(question.lowered, plan),
        "baseline_holders": metrics.peak_holders(question.lowered, question.baseline),
    }


def plan_metrics(question: Formulation, plan: Plan) -> dict[str, Any]:
    """Peak, where and of what, and seconds."""
    found = _result(question, plan)
    del found["overhead"]
    return {**found, "peak_by": metrics.peak_by(question.lowered, plan, question.count)}


def _bound(facts: ReportData) -> dict[str, Any]:
    question, cost = facts.question, _least_cost(facts)
    bound = question.bound
    return {
        "seconds": cost * question.lowered.problem.tick,
        "overhead": metrics.overhead(cost, question.baseline_cost),
        "peak_bytes": question.count.counted(bound.peak_bytes),
        "kind": bound.kind,
        "order": bound.order,
        "proof": bound.proof,
        "certificate": {"format": certificate.FORMAT, "claims": list(bound.claims)},
    }


def _least_cost(facts: ReportData) -> int:
    """Ticks no plan goes below: under the budget, or under none where the plan is over it."""
    bound = facts.question.bound
    return bound.single_run_cost if facts.plan.score.bytes_over_budget else bound.cost


def _asks_lowest(facts: ReportData) -> bool:
    """The goal is a peak, not a time."""
    return facts.question.goal.max_overhead is not None or facts.request.lowest_peak


def _status(facts: ReportData) -> str:
    question, score = facts.question, facts.plan.score
    if _asks_lowest(facts):
        return "proven" if score.peak_bytes == question.bound.peak_bytes else "found"
    if score.bytes_over_budget:
        return "over_budget"
    return "proven" if score.cost == question.bound.cost else "found"


def _gap(facts: ReportData) -> float:
    question, score = facts.question, facts.plan.score
    if _asks_lowest(facts):
        floor = question.count.counted(question.bound.peak_bytes)
        return question.count.counted(score.peak_bytes) / floor - 1 if floor > 0 else 0.0
    least = _least_cost(facts)
    return metrics.overhead(score.cost, question.baseline_cost) - metrics.overhead(least, question.baseline_cost)


def _smallest(facts: ReportData) -> dict[str, Any]:
    """The smallest reachable budget, where a plan shows it: when the one asked for was not reached."""
    question, score = facts.question, facts.plan.score
    shown = _status(facts) == "over_budget" or facts.request.lowest_peak
    return {
        "smallest_budget_bytes": question.count.counted(score.peak_bytes) if shown else None,
        "smallest_budget_proven": shown and score.peak_bytes == question.bound.peak_bytes,
    }


def binding_node(question: Formulation) -> str | None:
    """The node whose bytes no plan can go below; None when what is held at the end decides."""
    task = question.bound.binding_task
    return question.lowered.name_of_task(task) if task >= 0 else None


def _fits(facts: ReportData) -> bool:
    """Whether all bytes, residents and reserve included, fit the memory asked about, else the device's."""
    question = facts.question
    everything = facts.plan.score.peak_bytes + question.count.reserve_bytes
    return everything <= question.memory_bytes


def _share(question: Formulation, plan: Plan) -> float:
    whole = question.count.counted(question.baseline.score.peak_bytes)
    return 1 - question.count.counted(plan.score.peak_bytes) / whole if whole else 0.0


def _timeline(facts: ReportData) -> dict[str, Any]:
    question = facts.question
    baseline = node_sequence(question.lowered, question.baseline)
    shift = question.count.counted(0)
    return {
        "step_bytes": (facts.runs.step_bytes + shift).tolist(),
        "baseline_step_bytes": (baseline.step_bytes + shift).tolist(),
        "holder": _holder(question, facts.plan),
        "baseline_holder": _holder(question, question.baseline),
    }


def _holder(question: Formulation, plan: Plan) -> dict[str, Any] | None:
    """The largest of the counted values at the peak; None where there is none."""
    found = metrics.peak_holders(question.lowered, plan, 1, residents=not question.count.excluded_bytes)
    return {"value": found[0]["value"], "bytes": found[0]["bytes"]} if found else None


def _identify(model_hash: str, given: Mapping[str, Any], runs: list[list[Any]]) -> str:
    """The same question with the same answer has the same id."""
    text = json.dumps([model_hash, dict(given), runs], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
