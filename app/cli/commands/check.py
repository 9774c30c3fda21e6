"""`remat check`: regression test of a saved plan against the current model, with the nodes that cause a regression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.commands.diff import difference_lines
from app.cli.console.exported_programs import read_model
from app.cli.console.files import STANDARD_INPUT, demand_writable, read_report, to_json
from app.errors import BadUsage
from app.models import diff
from app.render import regression, regression_markdown, svg
from app.render.text import format_bytes, format_percent, format_seconds, table
from planner.report.largest_batch import largest_batches, memory_bytes
from planner.report.regression import MAX_BLAMED, drift
from planner.report.schema import parse_saved
from planner.request.budget import parse_fraction

MAX_LINES = 8
MAX_COMMENT_LINES = 20


@dataclass(frozen=True, slots=True)
class CheckOutput:
    """What to add to a check. `fits`: memory for the largest batch; `before`: the model of the saved plan."""

    fits: str | None = None
    before: str | None = None
    markdown: Path | None = None
    plot: Path | None = None


def run(plan: str, model: str, max_drift: str, output: CheckOutput, as_json: bool) -> int:
    """Exit code: 0 if no figure grew by more than `max_drift` and the plan's budget holds, else 1."""
    if [plan, model, output.before].count(STANDARD_INPUT) > 1:
        raise BadUsage("PLAN and MODEL are both standard input; name a file for one of them")
    if output.before is not None and output.fits is None:
        raise BadUsage("--before is read for the largest batch; give the memory with --fits as well")
    if output.fits is not None:
        memory_bytes(output.fits)  # reject what is no memory before the check
    if output.plot is not None:
        svg.demand_picture_path(output.plot)
    demand_writable(
        {output.before: "the model of the plan", model: "the model", plan: "the plan"}, output.markdown, output.plot
    )
    limit = parse_drift(max_drift)
    report = read_report(plan)
    parse_saved(report)
    data, fields = read_model(model, report["request"])
    earlier = None if output.before is None else read_model(output.before, report["request"])[0]
    document, drawn = compare({**report, "request": fields}, data, limit, output.fits, earlier)
    if output.plot is not None:
        svg.write(output.plot, svg.timeline(drawn))
    if output.markdown is not None:
        picture = "" if output.plot is None else output.plot.name
        differences = difference_lines(document["differences"], MAX_COMMENT_LINES) if document["differences"] else []
        text = regression_markdown.comment(document, model, drawn, differences, picture)
        write_atomic(output.markdown, text.encode(errors="replace"))
    print(to_json(document) if as_json else "\n".join(lines(document)))
    return 0 if document["within"] else 1


def parse_drift(max_drift: str) -> float:
    """The allowed growth as a share. Raises BadRequest; BadUsage for more than 100% without a percent sign."""
    limit = parse_fraction(max_drift, "--max-drift")
    if limit > 1 and "%" not in max_drift:
        raise BadUsage(f"--max-drift {max_drift} means {format_percent(limit)}; write {max_drift}%", code="bad_flag")
    return limit


def compare(
    report: Mapping[str, Any], model: bytes, limit: float, fits: str | None = None, before: bytes | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(document `remat-check/1`, a report with the timeline before and after, for charts).

    Raises BadGraph, BadRequest, IllegalPlan, OSError.
    """
    found = drift(report, model, limit)
    graphs = (side.formulation.lowered.graph for side in (found.before, found.after))
    differences = diff.compare_graphs(*graphs)
    blame = found.document["blame"] or list(dict.fromkeys(row["node"] for row in differences if row.get("node")))
    document = found.document | {"blame": blame[:MAX_BLAMED], "differences": differences}
    if fits is not None:
        document["largest_batch"] = largest_batches(found, report, model, fits, before)
    name = (document["now"].get("name") or "model") + ("" if document["replay"]["runs"] else ", without the plan")
    plan = {"budget_bytes": document["budget_bytes"]}
    return document, {"model": {"name": name}, "plan": plan, "timeline": found.timeline()}


def lines(document: Mapping[str, Any]) -> list[str]:
    """The verdict in the first line, then the figures, and the nodes that cause a regression."""
    rows = regression.figure_rows(document)
    text = [regression.headline(document), "", *table(("", "saved plan", "current", "drift"), rows, (1, 2, 3))]
    if document["budget_bytes"]:
        text.append(f"budget of the plan: {format_bytes(document['budget_bytes'])}")
    batch, why = regression.largest_batch(document)
    if batch:
        text.append(f"{batch} ({why})" if why else batch)
    if not document["within"]:
        text += ["", f"nodes to blame: {', '.join(document['blame']) or 'none by name'}"]
        text += [*_grown_values(document), *_slower_nodes(document)]
    if differences := document["differences"]:
        text += ["", f"the training graph differs in {len(differences)} place{'s' * (len(differences) > 1)}"]
        text += difference_lines(differences, MAX_LINES)
    return text + [f"warning: {warning}" for warning in document["warnings"]]


def _grown_values(document: Mapping[str, Any]) -> list[str]:
    """Values that grew at each peak that drifted or exceeds the budget."""
    text: list[str] = []
    for figure, rows in regression.grown_values(document):
        cells = [
            (
                f"  {row['value']}",
                format_bytes(row["was"]),
                format_bytes(row["now"]),
                regression.shapes(row),
                row["op"] or "",
                regression.producer(row),
                row["why"],
            )
            for row in rows[:MAX_LINES]
        ]
        more = [f"  ... and {len(rows) - MAX_LINES} more; --json prints all"] if len(rows) > MAX_LINES else []
        head = (f"growth at the {figure}", "was", "now", "shape", "op", "produced by", "why")
        text += ["", *table(head, cells, (1, 2)), *more]
    return text


def _slower_nodes(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (f"  {row['node']}", format_seconds(row["was"]), format_seconds(row["now"]), regression.shapes(row), row["op"])
        for row in regression.slower_nodes(document)[:MAX_LINES]
    ]
    return ["", *table(("slower nodes", "was", "now", "shape", "op"), rows, (1, 2))] if rows else []
