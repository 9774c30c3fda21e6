"""Parser of saved reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, UnsetType

from planner.errors import BadRequest
from planner.report.schema.documents import ReportDocument


class SavedReport(ReportDocument, kw_only=True):
    """A saved report with its source graph, as `remat verify` needs it."""

    source: dict[str, Any]


def parse_saved(document: Mapping[str, Any]) -> SavedReport:
    """The typed report. Raises BadRequest naming the first part that is missing or of another type.

    >>> parse_saved({"format": "remat-report/1"})
    Traceback (most recent call last):
    planner.errors.BadRequest: report: found Object missing required field `id`, expected a report with its source, ...
    """
    try:
        report = msgspec.convert(dict(document), SavedReport)
    except msgspec.ValidationError as error:
        found, _, place = str(error).partition(" - at `$")
        raise _damaged(place.strip("`.") or "report", found) from error
    layout = None if isinstance(report.layout, UnsetType) else report.layout
    for name, columns in (("layout", layout), ("layout.workspace", layout and layout.workspace)):
        lengths = {field: len(column) for field, column in _columns(columns)}
        if len(set(lengths.values())) > 1:
            raise _damaged(name, "columns of unequal length: " + ", ".join(f"{k} {n}" for k, n in lengths.items()))
    return report


def _columns(columns: Struct | None) -> list[tuple[str, list[Any]]]:
    if columns is None:
        return []
    found = ((name, getattr(columns, name)) for name in columns.__struct_fields__)
    return [(name, column) for name, column in found if isinstance(column, list)]


def _damaged(path: str, found: str) -> BadRequest:
    return BadRequest.one(
        "not_a_report",
        path,
        found,
        "a report with its source, as it was written",
        'write it with `remat plan -o`, or ask for {"return": ["plan", "source"]}',
    )
