"""`remat explain`: bytes freed and time added by each recomputation of a saved plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.commands.files import read_report, to_json
from app.render.report_sections import limiting_op, optional_sections
from app.render.text import format_bytes, format_seconds, headline, table
from planner.report import saved_report


def run(plan: str, as_json: bool) -> int:
    """Exit code; prints the recomputations, most bytes freed per second first."""
    report = read_report(plan)
    explained = saved_report.explain(report)
    print(to_json(explained) if as_json else "\n".join(lines(report, explained)))
    return 0


def lines(report: Mapping[str, Any], explained: Mapping[str, Any]) -> list[str]:
    """The explanation as text."""
    rows = [
        (
            row["node"],
            row["runs"],
            format_bytes(row["freed_bytes"]),
            format_bytes(row["byte_steps"]),
            format_seconds(row["seconds"]),
            "" if row["if_kept"] is None else format_bytes(row["if_kept"]["peak_bytes"]),
        )
        for row in explained["recomputed"]
    ]
    head = ("recomputed", "runs", "bytes freed", "bytes x steps", "extra time", "peak if kept")
    text = [headline(report), ""]
    text += table(head, rows, (1, 2, 3, 4, 5)) if rows else ["no recomputation"]
    for name, title in (("baseline_holders", "live at the peak before"), ("holders", "live at the peak after")):
        held = [
            (f"  {row['value']}", format_bytes(row["bytes"]), row["from_step"], row["to_step"])
            for row in explained[name]
        ]
        text += ["", *table((title, "", "from", "to"), held, (1, 2, 3))]
    return [*text, "", limiting_op(explained["binding"]), *optional_sections(report)]
