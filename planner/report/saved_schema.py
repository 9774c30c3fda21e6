"""The parts of a saved report that are read again, and their types; what else it holds is looked at by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from planner.errors import BadRequest

Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Measured(msgspec.Struct):
    """`baseline`."""

    peak_bytes: Integer
    seconds: float


class Bound(msgspec.Struct):
    """`plan.bound`."""

    seconds: float
    peak_bytes: Integer
    certificate: dict[str, Any] = {}


class Planned(msgspec.Struct):
    """`plan`."""

    status: str
    planner: str
    peak_bytes: Integer
    seconds: float
    overhead: float
    order: list[tuple[str, Integer]]
    budget_bytes: Integer | None = None
    max_overhead: float | None = None
    arena_bytes: Integer | None = None
    saved_bytes: Integer | None = None
    saved: float | None = None
    smallest_budget_bytes: Integer | None = None
    smallest_budget_proven: bool = False
    bound: Bound | None = None


class Workspace(msgspec.Struct):
    """`layout.workspace`."""

    step: list[Integer]
    bytes: list[Integer]
    offset: list[Integer]


class Layout(msgspec.Struct):
    """`layout`."""

    value: list[str]
    run: list[Integer]
    from_step: list[Integer]
    to_step: list[Integer]
    bytes: list[Integer]
    offset: list[Integer]
    workspace: Workspace


class Timeline(msgspec.Struct):
    """`timeline`."""

    step_bytes: list[Integer]


class Model(msgspec.Struct):
    """`model`."""

    hash: str
    nodes: Integer
    values: Integer


class Report(msgspec.Struct):
    """A report that was saved with the graph it is about."""

    request: dict[str, Any]
    plan: Planned
    source: dict[str, Any]
    model: Model
    baseline: Measured
    runtime: str
    device: str | dict[str, Any]
    fits: bool
    timeline: Timeline | None = None
    layout: Layout | None = None


def parts_of(document: Mapping[str, Any]) -> Report:
    """The parts of a report. Raises BadRequest naming the first one that is missing or of another type."""
    try:
        report = msgspec.convert(dict(document), Report)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        raise _damaged(place.strip("`.") or "report", said) from error
    for name, columns in (("layout", report.layout), ("layout.workspace", report.layout and report.layout.workspace)):
        lengths = {field: len(column) for field, column in _lists(columns) if isinstance(column, list)}
        if len(set(lengths.values())) > 1:
            raise _damaged(name, "columns of unequal length: " + ", ".join(f"{k} {n}" for k, n in lengths.items()))
    return report


def _lists(columns: msgspec.Struct | None) -> list[tuple[str, Any]]:
    return [] if columns is None else [(name, getattr(columns, name)) for name in columns.__struct_fields__]


def _damaged(path: str, found: str) -> BadRequest:
    return BadRequest.one(
        "not_a_report",
        path,
        found,
        "a report with its source, as it was written",
        'write it with `remat plan -o`, or ask for {"return": ["plan", "source"]}',
    )
