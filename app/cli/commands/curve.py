"""`remat curve`: plan a model at several budgets; the minimum time and its lower bound for each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.console.files import read_bytes, to_json
from app.cli.console.signals import EXIT_STOPPED, stop_on_signal
from app.models.names import named_after
from app.render import svg, terminal_chart
from app.render import text as terminal
from app.render.text import format_bytes, format_percent, format_seconds, table
from planner.pipeline.curve import curve
from planner.request.curve_and_fit_request import parse_curve


def run(
    model: str, fields: Mapping[str, Any], as_json: bool, draw: bool | None = None, plot: Path | None = None
) -> int:
    """Exit code of the command: 0 done, 1 a budget was not reached, 3 stopped, 4 internal error.

    `draw`: whether to draw the curve in characters; None: if standard output is a terminal.
    """
    request = parse_curve(fields)
    if plot is not None:
        svg.demand_picture_path(plot)
    data = read_bytes(model)
    progress = terminal.ProgressPrinter()
    with stop_on_signal() as stop:
        try:
            found = curve(data, request, on_progress=progress, cancel=stop)
        finally:
            progress.close()
    document = named_after(model, data, found.document)
    if plot is not None:
        svg.write(plot, svg.curve(document))
    print(to_json(document) if as_json else "\n".join(lines(document, draw)))
    if plot is not None:
        print(f"written: {plot}", file=sys.stderr)
    return EXIT_STOPPED if stop.is_set() else found.exit_code


def lines(document: Mapping[str, Any], draw: bool | None = None) -> list[str]:
    """The curve as text: one line per point, in request order, and optionally a chart."""
    model, base = document["model"], document["baseline"]
    has_copies = any(point.get("copied") for point in document["points"])
    columns = (
        "budget",
        "",
        "peak",
        "overhead",
        "bound",
        "status",
        "planner",
        *(("with copies",) if has_copies else ()),
    )
    rows = [
        (
            point["budget"],
            format_bytes(point["budget_bytes"]),
            format_bytes(point["peak_bytes"]),
            format_percent(point["overhead"]),
            format_percent(point["bound_overhead"]),
            _outcome(point),
            point["plan"]["planner"],
            *((_with_copies(point),) if has_copies else ()),
        )
        for point in document["points"]
    ]
    text = [
        f"{model['name'] or 'model'}: {model['nodes']} nodes, {model['values']} values; "
        f"baseline peak {format_bytes(base['peak_bytes'])}, {format_seconds(base['seconds'])} per step",
        "",
        *table(columns, rows, (1, 2, 3, 4)),
    ]
    if style := terminal_chart.chart_style(draw):
        text += ["", *terminal_chart.curve(document, style)]
    return text + [f"warning: {warning}" for warning in document["warnings"]]


def _with_copies(point: Mapping[str, Any]) -> str:
    """Overhead and host memory of the plan with copies at a point."""
    copied = point["copied"]
    if copied is None:
        return "none"
    if not copied["within_budget"]:
        return f"over budget: needs {format_bytes(copied['needed_bytes'])}"
    return f"{format_percent(copied['overhead'])}, {format_bytes(copied['host_peak_bytes'])} on the host"


def _outcome(point: Mapping[str, Any]) -> str:
    """Status of a point, with the memory needed where the peak alone does not explain why it exceeds the budget."""
    status: str = point["status"].replace("_", " ")
    if point["status"] != "over_budget" or point["peak_bytes"] > point["budget_bytes"]:
        return status
    return f"{status}: needs {format_bytes(point['needed_bytes'])}"
