"""Results of a batch as a text table and as CSV; state counts and exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.render import csv_table
from app.render.text import format_bytes, format_percent, table
from app.sweep.results import FAILED, OVER_BUDGET, SUCCEEDED, Row

STATES = (SUCCEEDED, OVER_BUDGET, FAILED, "stopped")


def sort_by_saved(rows: Iterable[Row]) -> list[Row]:
    """Rows by saved fraction, largest first; rows without a plan last."""
    return sorted(rows, key=lambda row: (row["saved"] is None, -(row["saved"] or 0.0)))


def count_states(rows: Iterable[Row]) -> dict[str, int]:
    """Number of rows per state."""
    counts = Counter(row["state"] for row in rows)
    return {state: counts[state] for state in STATES}


def exit_code(rows: Iterable[Row]) -> int:
    """0 all within budget, 1 some over budget, 2 some models or requests invalid, 4 some internal errors."""
    codes = {SUCCEEDED: 0, OVER_BUDGET: 1}
    return max(
        (
            codes.get(row["state"], 2 if (row["error"] or {}).get("status", 500) < 500 else 4)
            for row in rows
            if row["state"] != "stopped"
        ),
        default=0,
    )


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Lines of the table, most saved first, and a line of totals."""
    head = ("model", "batch", "budget", "planner", "seed", "before", "after", "saved", "overhead", "gap", "state")
    cells = [
        (
            row["model"],
            "" if row["batch"] is None else row["batch"],
            row["budget"],
            row["planner"],
            row["seed"],
            *(
                ("",) * 5
                if row["peak_bytes"] is None
                else (
                    format_bytes(row["baseline_peak_bytes"]),
                    format_bytes(row["peak_bytes"]),
                    format_percent(row["saved"]),
                    format_percent(row["overhead"]),
                    "" if row["gap"] is None or row["state"] == OVER_BUDGET else format_percent(row["gap"]),
                )
            ),
            row["status"].replace("_", " ") if row["state"] == SUCCEEDED else state_text(row),
        )
        for row in sort_by_saved(rows)
    ]
    return [*table(head, cells, (1, 4, 5, 6, 7, 8, 9)), "", totals_line(rows)]


def state_text(row: Mapping[str, Any]) -> str:
    """The state as text, with the error code if any."""
    word = str(row["state"]).replace("_", " ")
    return f"{word}: {row['error']['code']}" if row["error"] else word


def totals_line(rows: Sequence[Row]) -> str:
    """`18 plans: 16 within budget, 2 over budget, ...`."""
    counts = count_states(rows)
    words = {SUCCEEDED: "within budget", OVER_BUDGET: "over budget", FAILED: "failed", "stopped": "stopped"}
    parts = ", ".join(f"{counts[state]} {words[state]}" for state in STATES if counts[state] or state == SUCCEEDED)
    return f"{len(rows)} plans: {parts}"


def as_csv(rows: Sequence[Row]) -> str:
    """CSV text, one line per row in the given order; `error` is its code. Formulas are quoted."""
    columns = [name for name in (rows[0] if rows else {}) if name != "error"] + ["error"]
    flat = ({**row, "error": (row["error"] or {}).get("code", "")} for row in rows)
    return csv_table.table_as_csv(columns, ([_cell(row.get(name)) for name in columns] for row in flat))


def _cell(value: Any) -> Any:
    return value.get("name", "as described") if isinstance(value, dict) else value
