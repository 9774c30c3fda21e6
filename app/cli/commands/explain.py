"""`remat explain`: why a saved plan is as it is, per value that is computed again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.commands.files import read_report, to_json
from app.render.report_sections import besides, bound_by
from app.render.text import headline, seconds, size, table
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
            size(row["freed_bytes"]),
            size(row["byte_steps"]),
            seconds(row["seconds"]),
            "" if row["if_kept"] is None else size(row["if_kept"]["peak_bytes"]),
        )
        for row in explained["recomputed"]
    ]
    head = ("computed again", "runs", "bytes freed", "bytes x steps", "extra time", "peak if not")
    text = [headline(report), ""]
    text += table(head, rows, (1, 2, 3, 4, 5)) if rows else ["nothing is computed again"]
    for name, title in (("baseline_holders", "held at the peak before"), ("holders", "held at the peak after")):
        held = [(f"  {row['value']}", size(row["bytes"]), row["from_step"], row["to_step"]) for row in explained[name]]
        text += ["", *table((title, "", "from", "to"), held, (1, 2, 3))]
    return [*text, "", bound_by(explained["binding"]), *besides(report)]
