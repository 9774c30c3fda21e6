"""`remat check`: regression test of a saved plan against the current model, with the nodes that cause a regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.commands.diff import difference_lines
from app.cli.console.files import STANDARD_INPUT, read_bytes, read_report, to_json
from app.errors import BadUsage
from app.models import diff
from app.render.text import format_bytes, format_percent, format_seconds, table
from planner.report.regression import MAX_BLAMED, drift
from planner.request.budget import parse_fraction

MAX_LINES = 8
FIGURE_NAMES = {
    "baseline.peak_bytes": "baseline peak",
    "baseline.seconds": "baseline time",
    "plan.peak_bytes": "peak with the plan",
    "plan.seconds": "time with the plan",
}


def run(plan: str, model: str, max_drift: str, as_json: bool) -> int:
    """Exit code: 0 if no figure grew by more than `max_drift` and the plan's budget holds, else 1."""
    if plan == model == STANDARD_INPUT:
        raise BadUsage("PLAN and MODEL are both standard input; name a file for one of them")
    limit = parse_fraction(max_drift, "--max-drift")
    if limit > 1 and "%" not in max_drift:
        raise BadUsage(f"--max-drift {max_drift} means {format_percent(limit)}; write {max_drift}%", code="bad_flag")
    found = drift(read_report(plan), read_bytes(model), limit)
    graphs = (side.formulation.lowered.graph for side in (found.before, found.after))
    differences = diff.compare_graphs(*graphs)
    blame = found.document["blame"] or list(dict.fromkeys(row["node"] for row in differences if row.get("node")))
    document = found.document | {"blame": blame[:MAX_BLAMED], "differences": differences}
    print(to_json(document) if as_json else "\n".join(lines(document)))
    return 0 if document["within"] else 1


def lines(document: Mapping[str, Any]) -> list[str]:
    """The verdict in the first line, then the figures, and the nodes that cause a regression."""
    rows = [(FIGURE_NAMES[row["what"]], *_before_and_now(row), _drift(row)) for row in document["figures"]]
    text = [headline(document), "", *table(("", "saved plan", "current", "drift"), rows, (1, 2, 3))]
    if document["budget_bytes"]:
        text.append(f"budget of the plan: {format_bytes(document['budget_bytes'])}")
    if not document["within"]:
        text += ["", f"nodes to blame: {', '.join(document['blame']) or 'none by name'}"]
        text += [*_grown_values(document, "baseline"), *_grown_values(document, "plan"), *_slower_nodes(document)]
    if differences := document["differences"]:
        text += ["", f"the training graph differs in {len(differences)} place{'s' * (len(differences) > 1)}"]
        text += difference_lines(differences, MAX_LINES)
    return text + [f"warning: {warning}" for warning in document["warnings"]]


def headline(document: Mapping[str, Any]) -> str:
    """The verdict in one line, the worst finding first."""
    if not document["replay"]["runs"]:
        return f"drifted: the plan does not run on this model: {document['replay']['why']}"
    grown = [row for row in document["figures"] if row["what"] in document["drifted"]]
    growth = [f"{FIGURE_NAMES[row['what']]} grew by {_drift(row).lstrip('+')}" for row in grown]
    limit = f"more than {format_percent(document['max_drift'])}"
    if document["over_budget"]:
        peak = next(row["now"] for row in document["figures"] if row["what"] == "plan.peak_bytes")
        over = f"over budget: the plan peaks at {format_bytes(peak)} of {format_bytes(document['budget_bytes'])}"
        return "; ".join([over, *growth])
    return f"drifted: {', '.join(growth)}: {limit}" if growth else f"holds: nothing grew by {limit}"


def _before_and_now(row: Mapping[str, Any]) -> tuple[str, str]:
    form = format_bytes if row["what"].endswith("bytes") else format_seconds
    return form(row["was"]), "cannot run" if row["now"] is None else form(row["now"])


def _drift(row: Mapping[str, Any]) -> str:
    if row["drift"] is None:
        return "" if row["now"] is None else "from nothing"
    return f"{100 * row['drift']:+.2f}%"


def _grown_values(document: Mapping[str, Any], part: str) -> list[str]:
    """Values that grew at the peak of `part`, if that peak drifted or exceeds the budget."""
    rows = document["holds_more"].get(part, [])
    regressed = f"{part}.peak_bytes" in document["drifted"] or (document["over_budget"] and part == "plan")
    if not regressed or not rows:
        return []
    cells = [
        (
            f"  {row['value']}",
            format_bytes(row["was"]),
            format_bytes(row["now"]),
            row["node"] or "graph input",
            row["why"],
        )
        for row in rows[:MAX_LINES]
    ]
    more = [f"  ... and {len(rows) - MAX_LINES} more; --json prints all"] if len(rows) > MAX_LINES else []
    head = (f"growth at the {FIGURE_NAMES[f'{part}.peak_bytes']}", "was", "now", "produced by", "why")
    return ["", *table(head, cells, (1, 2)), *more]


def _slower_nodes(document: Mapping[str, Any]) -> list[str]:
    if not any(what.endswith("seconds") for what in document["drifted"]):
        return []
    rows = [
        (f"  {row['node']}", format_seconds(row["was"]), format_seconds(row["now"]))
        for row in document["takes_longer"][:MAX_LINES]
    ]
    return ["", *table(("slower nodes", "was", "now"), rows, (1, 2))] if rows else []
