"""Rebuild a saved report from its source, request, order, addresses and claims, and find what differs.

Every field that follows from these is computed a second time. What cannot follow from a file alone is taken from the
report and listed, so that a reader knows which fields rest on its writer:

    elapsed, how the search ended, texts of warnings          observed while planning
    results of execution beyond `execute: auto`, gradients    need the model, or more time than a check may take
    advice, checkpoint advice, other sets of shapes           other plans, whose graphs are not in the file
    arena without its layout, proofs inside the certificate   another layout or proof would do as well
    id under which a service stores the plan                  belongs to the service
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graph.buffer_sharing import sharing
from graph.formats.native.identity import GRAPH_NAME, model_identity, renamed
from graph.formats.native.writer import document as document_of
from graph.training.gradient_check import GradientCheck
from planner.errors import IllegalPlan
from planner.formulation.execution_check import (
    DIFFERENT,
    EQUAL,
    NOT_ASKED_FOR,
    NOT_EXECUTED,
    ExecutionResult,
    RealizedPlan,
    run_and_compare,
)
from planner.formulation.formulation import Formulation
from planner.lowering.realize import NodeSequence
from planner.problem.plan import Plan
from planner.report.report import ReportData, build_report
from planner.request.plan_request import Request

#: What was observed while planning.
OBSERVED = ("elapsed", "plan.planner", "plan.reproducible", "plan.stopped", "warnings")
#: Sections about other plans or about the model, which the file does not contain.
OTHER_PLANS = ("advice", "checkpoint_advice", "gradients", "shapes")
#: Fields that follow from the arena where the runtime uses the planned addresses.
OF_THE_ARENA = (
    *(f"plan.{name}" for name in ("needed_bytes", "within_budget", "status", "gap", "saved_bytes", "saved")),
    *("plan.smallest_budget_bytes", "plan.smallest_budget_proven", "fits", "fits_device"),
)
#: What `executed.how` says: a run in the arena, perhaps of a smaller batch, and another comparison.
HOW = re.compile(r"arena(, batch cut to [1-9]\d*)?(; against the unchanged step: .+)?")

#: Id under which a service stores a plan: a hash of graph and report.
SERVICE_ID = re.compile("[0-9a-f]{64}")


def check_report(
    document: Mapping[str, Any], request: Request, formulation: Formulation, plan: Plan, runs: NodeSequence
) -> list[str]:
    """Fields that were not recomputed. Raises IllegalPlan naming the first field that differs from what follows."""
    claimed = document["plan"]
    if min(document["elapsed"].values(), default=0) < 0:
        raise IllegalPlan("elapsed: a time below 0 s")
    realized = RealizedPlan(formulation, plan, runs)
    executed, unchecked = _executed(document["executed"], realized, request)
    formulation.check_baseline()
    data = ReportData(
        formulation,
        plan,
        runs,
        formulation.mirrored(),
        executed,
        (),
        document["elapsed"],
        stopped_by_clock=request.iterations is None and not claimed["stopped"] and not claimed["reproducible"],
        stopped=claimed["stopped"],
        request=replace(
            request,
            given=document["request"],
            returns=tuple(name for name in ("timeline", "layout", "explain") if name in document),
        ),
    )
    sections = {name: document[name] for name in (*OTHER_PLANS, "source") if name in document}
    if "sharing" in document:
        sections["sharing"] = sharing.sharing_report(realized.rewritten)
    if "graph" in document:
        sections["graph"] = document_of(realized.rewritten)
    report = build_report(data, model_identity(realized.source), sections)
    missing = [text for text in (*formulation.warnings, *report["warnings"]) if text not in document["warnings"]]
    if missing:
        raise IllegalPlan(f"warnings: the report leaves out {missing[0]!r}")
    report["warnings"] = document["warnings"]
    if document["model"].get(GRAPH_NAME) == report["model"]["name"]:  # the model is called by its file
        report["model"] = renamed(report["model"], document["model"]["name"])
    if claimed["arena_bytes"] is not None and plan.offsets is None:
        unchecked += ["plan.arena_bytes", *(OF_THE_ARENA if formulation.places else ())]
    if SERVICE_ID.fullmatch(document["id"]):
        report["id"] = document["id"]
        report["model"] = {**report["model"], "hash": document["model"]["hash"]}  # the client may have hidden the names
        unchecked += ["id", "model.hash"]
    if report["plan"]["bound"]["certificate"]["claims"] == list(formulation.bound.claims):
        report["plan"]["bound"]["certificate"]["claims"] = claimed["bound"]["certificate"]["claims"]
    if difference := _difference("", report, document):
        raise IllegalPlan(difference)
    return [*unchecked, *OBSERVED, *(name for name in OTHER_PLANS if name in document)]


def _executed(
    section: Mapping[str, Any], realized: RealizedPlan, request: Request
) -> tuple[ExecutionResult, list[str]]:
    """(result of the execution, fields taken from the report). Raises IllegalPlan if they contradict each other.

    A run at the full batch is repeated within the limits of `execute: auto`.
    """
    peak, gradients = section.get("peak_bytes"), section.get("gradients")
    claimed = ExecutionResult(
        section["status"],
        section["how"],
        section["why"],
        None if peak is None else realized.formulation.count.held(peak),
        None if gradients is None else GradientCheck(**gradients),
    )
    unchecked = [] if gradients is None else ["executed.gradients"]
    if request.execute == "no":
        return ExecutionResult(NOT_EXECUTED, why=NOT_ASKED_FOR), []
    if claimed.status == NOT_EXECUTED:
        return replace(claimed, how="", peak_bytes=None, gradients=None), ["executed.why"]
    if not HOW.fullmatch(claimed.how) or bool(claimed.why) != (claimed.status == DIFFERENT):
        raise IllegalPlan(f"executed: {claimed.status!r} by {claimed.how!r} and {claimed.why!r} contradict each other")
    if claimed.how != "arena":
        unchecked = ["executed"]
    else:
        ran = run_and_compare(realized, replace(request, execute="auto"), lambda batch: None, threading.Event())
        if ran.status != NOT_EXECUTED:
            return replace(ran, gradients=claimed.gradients), unchecked
        unchecked = ["executed"]
    measured = claimed.status == EQUAL and "batch cut" not in claimed.how
    return replace(claimed, peak_bytes=claimed.peak_bytes if measured else None), unchecked


def _difference(path: str, derived: Any, given: Any) -> str:
    """The first field of the report that differs from the derived one; empty if none does."""
    if isinstance(derived, Mapping) and isinstance(given, Mapping):
        names = [*derived, *(name for name in given if name not in derived)]
        inner = (
            _difference(f"{path}.{name}".lstrip("."), derived.get(name, _ABSENT), given.get(name, _ABSENT))
            for name in names
        )
        return next(filter(None, inner), "")
    if isinstance(derived, list | tuple) and isinstance(given, list | tuple) and len(derived) == len(given):
        pairs = enumerate(zip(derived, given, strict=True))
        return next(filter(None, (_difference(f"{path}[{k}]", one, two) for k, (one, two) in pairs)), "")
    if _is_number(derived) and _is_number(given):
        exact = isinstance(derived, int) and isinstance(given, int)
        same = derived == given if exact else math.isclose(derived, given, rel_tol=1e-9, abs_tol=1e-12)
    else:
        same = type(derived) is type(given) and derived == given
    return "" if same else f"{path}: the report says {_shown(given)}, its source and order give {_shown(derived)}"


#: In the place of a field that one of both reports lacks.
_ABSENT = object()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else repr(value)[:80]
