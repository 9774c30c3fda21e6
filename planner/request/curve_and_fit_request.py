"""What is asked of several plans of one model at once: a curve over budgets, or the largest size that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import BadRequest, Finding
from planner.request.budget import Budget, parse_budget
from planner.request.plan_request import DEFAULT_OVERHEAD, Request, parse_request

MAX_BUDGETS = 64
#: Fields of a request that shape one report alone.
SINGLE_REPORT_FIELDS = ("shapes", "return", "advise", "advise_checkpoints", "share_buffers", "gradient_events")
#: A curve's goal is its budgets, and a fit's memory is in bytes.
NOT_IN_CURVE = ("budget", "max_overhead", "fits", *SINGLE_REPORT_FIELDS)
NOT_IN_FIT = ("fraction_of", *SINGLE_REPORT_FIELDS)


@dataclass(frozen=True, slots=True)
class CurveRequest:
    """A curve to be made. `request` has no goal; `given` are the budgets as they were sent."""

    request: Request
    budgets: tuple[Budget, ...]
    given: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class FitRequest:
    """A fit to be found. `request` has the memory as its goal."""

    request: Request
    max_overhead: float
    grow: str  # "batch", "sequence" or the name of a dimension


def parse_curve(fields: Mapping[str, Any], returns: Sequence[str] = ()) -> CurveRequest:
    """The curve that `fields` ask for: those of a request, with `budgets` for its goal.

    The report of each point gets the sections `returns` besides the usual ones.
    Raises BadRequest with a finding per faulty field or budget, ten at most.
    """
    findings = [_left_out(name) for name in NOT_IN_CURVE if name in fields]
    others = {name: given for name, given in fields.items() if name != "budgets" and name not in NOT_IN_CURVE}
    request = Request()
    try:
        request = parse_request(others)
    except BadRequest as error:
        findings.extend(error.findings)
    given = fields.get("budgets")
    budgets = _budgets(given, findings)
    if findings:
        raise BadRequest(findings[:10])
    request = replace(request, returns=(*request.returns, *returns))
    return CurveRequest(request, budgets, tuple(given or ()))


def _left_out(name: str) -> Finding:
    if name in NOT_IN_CURVE[:3]:
        return Finding("conflicting_goals", name, f"{name} beside budgets", "budgets alone", f"leave {name} out")
    return Finding(
        "unknown_field",
        name,
        f"{name}, which is about one plan",
        "no such field in a curve",
        "leave it out, and ask for a plan at that budget",
    )


def _budgets(given: Any, findings: list[Finding]) -> tuple[Budget, ...]:
    """The budgets; what is wrong with them joins the findings."""
    if not isinstance(given, (list, tuple)) or not 1 <= len(given) <= MAX_BUDGETS:
        found = f"{len(given)} budgets" if isinstance(given, (list, tuple)) else repr(given)[:80]
        expected, remedy = f"a list of 1 to {MAX_BUDGETS} budgets", 'name them, such as ["90%", "50%", "8GiB"]'
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
            found = f"{entry!r}, which budgets[{seen[budget]}] says"
            findings.append(
                Finding("duplicate_budget", f"budgets[{place}]", found, "each budget once", "leave one of them out")
            )
        seen.setdefault(budget, place)
    return tuple(seen)


def parse_fit(fields: Mapping[str, Any], returns: Sequence[str] = ()) -> FitRequest:
    """What `fields` ask for: those of a request, with `grow`, and `max_overhead` beside the memory.

    The report of its plan gets the sections `returns` besides the usual ones.
    Raises BadRequest with a finding per faulty field, ten at most.
    """
    findings = [
        Finding("unknown_field", name, f"{name}, which no fit has", "no such field", "leave it out, and ask for a plan")
        for name in NOT_IN_FIT
        if name in fields
    ]
    own = {name: fields[name] for name in ("grow", "max_overhead") if name in fields}
    grow = own.get("grow", "batch")
    if not isinstance(grow, str) or not grow:
        expected = "batch, sequence or a dimension's name"
        findings.append(Finding("bad_field", "grow", repr(grow)[:80], expected, "name what grows"))
    request, most = Request(), None
    try:
        most = parse_request({"max_overhead": own.get("max_overhead")}).max_overhead
    except BadRequest as error:
        findings.extend(error.findings)
    try:
        request = parse_request({k: v for k, v in fields.items() if k not in own and k not in NOT_IN_FIT})
    except BadRequest as error:
        findings.extend(error.findings)
    findings += _faults(fields, request, grow)
    if findings:
        raise BadRequest(findings[:10])
    request = replace(request, returns=(*request.returns, *returns))
    return FitRequest(request, DEFAULT_OVERHEAD if most is None else most, grow)


def _faults(fields: Mapping[str, Any], request: Request, grow: Any) -> list[Finding]:
    """What does not go together; of a request that could not be parsed only what was sent is known."""
    findings = []
    if fields.get("budget") is None and fields.get("fits") is None:
        remedy = 'say "80GiB", or fits: a device'
        findings.append(Finding("no_memory", "budget", "nothing", "the memory to fit, in bytes", remedy))
    if request.budget is not None and not request.budget.bytes:
        expected = "bytes above 0: what a share is of grows with the model"
        findings.append(Finding("bad_budget", "budget", "a share, or 0", expected, 'say how many, such as "80GiB"'))
    dims = fields.get("dims")
    named = dims.get(grow) if isinstance(dims, Mapping) and isinstance(grow, str) else None
    path, fixed = ("batch", fields.get("batch")) if grow == "batch" else (f"dims.{grow}", named)
    if fixed is not None:
        findings.append(
            Finding("conflicting_sizes", path, repr(fixed)[:80], "no length for what grows", "leave it out")
        )
    return findings
