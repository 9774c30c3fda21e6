"""`remat explain`: why a saved plan is as it is, per value that is computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.commands.files import read_report, to_json
from app.render.report_sections import limiting_op, optional_sections
from app.render.text import format_bytes, format_seconds, headline, table
from planner.report import saved_report


def run(plan: str, as_json: bool) -> int:
    """Exit code; what each repeat frees and costs is printed, the best bargain first."""
    report = read_report(plan)
    explained = saved_report.explain(report)
    print(to_json(explained) if as_json else "\n".join(lines(report, explained)))
    return 0


def lines(report: Mapping[str, Any], explained: Mapping[str, Any]) -> list[str]:
    """The reasons as text."""
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
    head = ("computed again", "runs", "bytes freed", "bytes x steps", "extra time", "peak if not")
    text = [headline(report), ""]
    text += table(head, rows, (1, 2, 3, 4, 5)) if rows else ["nothing is computed again"]
    for name, title in (("baseline_holders", "held at the peak before"), ("holders", "held at the peak after")):
        held = [
            (f"  {row['value']}", format_bytes(row["bytes"]), row["from_step"], row["to_step"])
            for row in explained[name]
        ]
        text += ["", *table((title, "", "from", "to"), held, (1, 2, 3))]
    return [*text, "", limiting_op(explained["binding"]), *optional_sections(report)]
