"""Requests for several plans of one model: a curve over budgets, or the largest size that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import BadRequest, Finding
from planner.request.budget import Budget, parse_budget
from planner.request.field_parsers import MAX_FINDINGS, unknown_field
from planner.request.plan_request import DEFAULT_OVERHEAD, FIELDS, GOALS, PARSERS, Request, fields_of, parse_request

MAX_BUDGETS = 64
#: The goal of a curve is `budgets`; the memory of a fit is in bytes, one of MEMORY_FIELDS.
NOT_IN_CURVE = tuple(name for name, row in FIELDS.items() if "curve" not in row.requests)
NOT_IN_FIT = tuple(name for name, row in FIELDS.items() if "fit" not in row.requests)
MEMORY_FIELDS = ("budget", "fits")


@dataclass(frozen=True, slots=True)
class CurveRequest:
    """Request for a curve. `request` has no goal; `given` are the budgets as sent."""

    request: Request
    budgets: tuple[Budget, ...]
    given: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FitRequest:
    """Request for a fit. The goal of `request` is the memory."""

    request: Request
    max_overhead: float
    grow: str  # "batch", "sequence" or the name of a dimension


def parse_curve(fields: Mapping[str, Any], returns: Sequence[str] = ()) -> CurveRequest:
    """Parse the fields of a curve: those of a request, with `budgets` instead of a goal.

    The report of each point gets the additional sections `returns`.
    Raises BadRequest with one finding for each faulty field or budget, at most MAX_FINDINGS.
    """
    findings = [
        Finding("conflicting_goals", name, f"{name} together with budgets", "budgets alone", f"remove {name}")
        for name in GOALS
        if name in fields
    ]
    request = _parse_shared("curve", fields, (*GOALS, "budgets"), findings)
    given = fields.get("budgets")
    budgets = _budgets(given, findings)
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    request = replace(request, returns=(*request.returns, *returns))
    return CurveRequest(request, budgets, tuple(given or ()))


def _parse_shared(kind: str, fields: Mapping[str, Any], own: Sequence[str], findings: list[Finding]) -> Request:
    """Request of the fields that curve or fit share with a plan, `own` left out; faults are appended to `findings`."""
    foreign = {name for name, row in FIELDS.items() if kind not in row.requests and name not in own}
    expected, remedy = f"no such field in a {kind}", "remove it, or request a plan"
    findings += [Finding("unknown_field", name, name, expected, remedy) for name in fields if name in foreign]
    known = [*(name for name in own if name not in FIELDS), *(row.name for row in fields_of(kind))]
    findings += [unknown_field(name, name, known) for name in fields if name not in {*own, *FIELDS}]
    shared = FIELDS.keys() - {*own, *foreign}
    try:
        return parse_request({name: given for name, given in fields.items() if name in shared})
    except BadRequest as error:
        findings.extend(error.findings)
        return Request()


def _budgets(given: Any, findings: list[Finding]) -> tuple[Budget, ...]:
    """Parsed budgets; faults are appended to `findings`."""
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= MAX_BUDGETS:
        found = f"{len(given)} budgets" if isinstance(given, (list, tuple)) else repr(given)[:80]
        expected, remedy = f"a list of 1 to {MAX_BUDGETS} budgets", 'list them, such as ["90%", "50%", "8GiB"]'
        findings.append(Finding("bad_budgets", "budgets", "nothing" if given is None else found, expected, remedy))
        return ()
    seen: dict[Budget, int] = {}
    for place, entry in enumerate(given):
        try:
            budget = parse_budget(entry, f"budgets[{place}]")
        except BadRequest as error:
            findings.extend(error.findings)
            continue
        if budget in seen:
            found = f"{entry!r}, a duplicate of budgets[{seen[budget]}]"
            findings.append(
                Finding("duplicate_budget", f"budgets[{place}]", found, "each budget once", "remove one of them")
            )
        seen.setdefault(budget, place)
    return tuple(seen)


def parse_fit(fields: Mapping[str, Any], returns: Sequence[str] = ()) -> FitRequest:
    """Parse the fields of a fit: those of a request, with `grow`, and with `max_overhead` in addition to the memory.

    The report of the plan gets the additional sections `returns`.
    Raises BadRequest with one finding for each faulty field, at most MAX_FINDINGS.
    """
    findings: list[Finding] = []
    grow, max_overhead = fields.get("grow", "batch"), None
    if not isinstance(grow, str) or not grow:
        expected = "batch, sequence or a dimension's name"
        findings.append(Finding("bad_field", "grow", repr(grow)[:80], expected, "name the dimension that grows"))
    try:
        max_overhead = PARSERS["max_overhead"](fields.get("max_overhead"), "max_overhead")
    except BadRequest as error:
        findings.extend(error.findings)
    request = _parse_shared("fit", fields, ("grow", "max_overhead"), findings)
    findings += _conflicts(fields, request, grow)
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    request = replace(request, returns=(*request.returns, *returns))
    return FitRequest(request, DEFAULT_OVERHEAD if max_overhead is None else max_overhead, grow)


def _conflicts(fields: Mapping[str, Any], request: Request, grow: Any) -> list[Finding]:
    """Findings about combinations of fields; uses raw fields, because `request` is empty if parsing failed."""
    findings = []
    if fields.get("budget") is None and fields.get("fits") is None:
        remedy = 'set budget to bytes such as "80GiB", or fits to a device'
        findings.append(Finding("no_memory", "budget", "nothing", "the memory to fit, in bytes", remedy))
    if request.budget is not None and not request.budget.bytes:
        expected = "bytes above 0; a share of a growing model is not a fixed memory"
        findings.append(Finding("bad_budget", "budget", "a share, or 0", expected, 'write bytes, such as "80GiB"'))
    dims = fields.get("dims")
    named = dims.get(grow) if isinstance(dims, Mapping) and isinstance(grow, str) else None
    path, fixed = ("batch", fields.get("batch")) if grow == "batch" else (f"dims.{grow}", named)
    if fixed is not None:
        findings.append(
            Finding("conflicting_sizes", path, repr(fixed)[:80], "no length for the dimension that grows", "remove it")
        )
    return findings
