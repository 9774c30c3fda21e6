"""Tables as CSV that a spreadsheet may open: no name in them is computed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute it


def as_csv(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows under a line of names, as RFC 4180 has it; null is empty.

    Text that a spreadsheet would compute gets a quote in front (OWASP, CSV Injection).
    """
    named = tuple(names)
    return table_as_csv(named, ([row.get(name) for name in named] for row in rows))


def table_as_csv(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """As `as_csv`, of rows that have their values in the order of the names."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
