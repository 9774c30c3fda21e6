"""CSV tables safe to open in a spreadsheet (no formula injection)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # prefixes that a spreadsheet evaluates


def as_csv(names: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """CSV text with a header (RFC 4180); None is an empty cell.

    Text that a spreadsheet would evaluate gets a leading quote (OWASP, CSV Injection).
    """
    columns = tuple(names)
    return table_as_csv(columns, ([row.get(name) for name in columns] for row in rows))


def table_as_csv(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """As `as_csv`, for rows whose values are in the order of `names`."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
