"""`remat check`: memory as a test; whether a model still fits the plan that was made for it, and who is to blame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.cli.commands.diff import difference_lines
from app.cli.commands.files import STANDARD_INPUT, read_bytes, read_report, to_json
from app.errors import BadUsage
from app.models import diff
from app.render.text import format_bytes, format_percent, format_seconds, table
from planner.report.regression import MAX_BLAMED, drift
from planner.request.budget import parse_fraction

MAX_LINES = 8
FIGURE_NAMES = {
    "baseline.peak_bytes": "peak as it stands",
    "baseline.seconds": "time as it stands",
    "plan.peak_bytes": "peak with the plan",
    "plan.seconds": "time with the plan",
}


def run(plan: str, model: str, max_drift: str, as_json: bool) -> int:
    """0 when no figure grew by more than `max_drift` and the plan's budget holds, else 1, with the reasons printed."""
    if plan == model == STANDARD_INPUT:
        raise BadUsage("PLAN and MODEL are both standard input; name a file for one of them")
    most = parse_fraction(max_drift, "--max-drift")
    if most > 1 and "%" not in max_drift:
        raise BadUsage(f"--max-drift {max_drift} would be {format_percent(most)}; say {max_drift}%", code="bad_flag")
    found = drift(read_report(plan), read_bytes(model), most)
    graphs = (side.question.lowered.graph for side in (found.before, found.after))
    differences = diff.compare_graphs(*graphs)
    blame = found.document["blame"] or list(dict.fromkeys(row["node"] for row in differences if row.get("node")))
    document = found.document | {"blame": blame[:MAX_BLAMED], "differences": differences}
    print(to_json(document) if as_json else "\n".join(lines(document)))
    return 0 if document["within"] else 1


def lines(document: Mapping[str, Any]) -> list[str]:
    """The verdict in the first line, then the figures, and who is to blame where they are not good."""
    rows = [(FIGURE_NAMES[row["what"]], *_said(row), _drift(row)) for row in document["figures"]]
    text = [headline(document), "", *table(("", "with the plan's model", "now", "drift"), rows, (1, 2, 3))]
    if document["budget_bytes"]:
        text.append(f"budget of the plan: {format_bytes(document['budget_bytes'])}")
    if not document["within"]:
        text += ["", f"nodes to blame: {', '.join(document['blame']) or 'none by name'}"]
        text += [*_holding(document, "baseline"), *_holding(document, "plan"), *_taking(document)]
    if found := document["differences"]:
        text += ["", f"the training graph differs in {len(found)} place{'s' * (len(found) > 1)}"]
        text += difference_lines(found, MAX_LINES)
    return text + [f"warning: {warning}" for warning in document["warnings"]]


def headline(document: Mapping[str, Any]) -> str:
    """What is wrong, the worst first; or that nothing is."""
    if not document["replay"]["runs"]:
        return f"drifted: the plan does not run on this model: {document['replay']['why']}"
    grown = [row for row in document["figures"] if row["what"] in document["drifted"]]
    said = [f"{FIGURE_NAMES[row['what']]} grew by {_drift(row).lstrip('+')}" for row in grown]
    limit = f"more than {format_percent(document['max_drift'])}"
    if document["over_budget"]:
        peak = next(row["now"] for row in document["figures"] if row["what"] == "plan.peak_bytes")
        over = f"over budget: the plan peaks at {format_bytes(peak)} of {format_bytes(document['budget_bytes'])}"
        return "; ".join([over, *said])
    return f"drifted: {', '.join(said)}: {limit}" if said else f"holds: nothing grew by {limit}"


def _said(row: Mapping[str, Any]) -> tuple[str, str]:
    say = format_bytes if row["what"].endswith("bytes") else format_seconds
    return say(row["was"]), "cannot run" if row["now"] is None else say(row["now"])


def _drift(row: Mapping[str, Any]) -> str:
    if row["drift"] is None:
        return "" if row["now"] is None else "from nothing"
    return f"{100 * row['drift']:+.2f}%"


def _holding(document: Mapping[str, Any], part: str) -> list[str]:
    """Who holds more at one of the peaks, where it grew too far or is over the budget."""
    rows = document["holds_more"].get(part, [])
    asked = f"{part}.peak_bytes" in document["drifted"] or (document["over_budget"] and part == "plan")
    if not asked or not rows:
        return []
    cells = [
        (f"  {row['value']}", format_bytes(row["was"]), format_bytes(row["now"]), row["node"] or "given", row["why"])
        for row in rows[:MAX_LINES]
    ]
    more = [f"  ... and {len(rows) - MAX_LINES} more; --json prints all"] if len(rows) > MAX_LINES else []
    head = (f"holds more at the {FIGURE_NAMES[f'{part}.peak_bytes']}", "was", "now", "made by", "why")
    return ["", *table(head, cells, (1, 2)), *more]


def _taking(document: Mapping[str, Any]) -> list[str]:
    if not any(what.endswith("seconds") for what in document["drifted"]):
        return []
    rows = [
        (f"  {row['node']}", format_seconds(row["was"]), format_seconds(row["now"]))
        for row in document["takes_longer"][:MAX_LINES]
    ]
    return ["", *table(("takes longer", "was", "now"), rows, (1, 2))] if rows else []
