"""`remat curve`: a model and several budgets in; the least time within each, and the bound beside it, out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.cli.commands.files import demand_writable, read_bytes, to_json
from app.cli.commands.signals import EXIT_STOPPED, stop_on_signal
from app.render import svg, terminal_chart
from app.render import text as terminal
from app.render.text import format_bytes, format_percent, format_seconds, table
from planner.pipeline.curve import curve
from planner.request.curve_and_fit_request import parse_curve


def run(
    model: str, fields: Mapping[str, Any], as_json: bool, draw: bool | None = None, plot: Path | None = None
) -> int:
    """Exit code of the command: 0 done, 1 a budget was not reached, 3 stopped, 4 our own fault.

    `draw`: whether the curve is shown in characters; None: where standard output is a terminal.
    """
    asked = parse_curve(fields)
    if plot is not None:
        svg.demand_picture_path(plot)
    demand_writable(model, plot)
    data = read_bytes(model)
    progress = terminal.ProgressPrinter()
    with stop_on_signal() as stop:
        try:
            found = curve(data, asked, on_progress=progress, cancel=stop)
        finally:
            progress.close()
    if plot is not None:
        svg.write(plot, svg.curve(found.document))
    print(to_json(found.document) if as_json else "\n".join(lines(found.document, draw)))
    if plot is not None:
        print(f"written: {plot}", file=sys.stderr)
    return EXIT_STOPPED if stop.is_set() else found.exit_code


def lines(document: Mapping[str, Any], draw: bool | None = None) -> list[str]:
    """The curve as text, a line a point in the order that was asked, and drawn where that is wanted."""
    model, base = document["model"], document["baseline"]
    rows = [
        (
            point["budget"],
            format_bytes(point["budget_bytes"]),
            format_bytes(point["peak_bytes"]),
            format_percent(point["overhead"]),
            format_percent(point["bound_overhead"]),
            point["status"].replace("_", " "),
            point["plan"]["planner"],
        )
        for point in document["points"]
    ]
    text = [
        f"{model['name'] or 'model'}: {model['nodes']} nodes, {model['values']} values; "
        f"peak as it stands {format_bytes(base['peak_bytes'])}, {format_seconds(base['seconds'])} a step",
        "",
        *table(("budget", "", "peak", "more time", "at least", "status", "planner"), rows, (1, 2, 3, 4)),
    ]
    if look := terminal_chart.chart_style(draw):
        text += ["", *terminal_chart.curve(document, look)]
    return text + [f"warning: {warning}" for warning in document["warnings"]]
