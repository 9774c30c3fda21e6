"""`remat fit`: the largest batch or sequence length that fits a memory limit, and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.commands.plan import SAVED_SECTIONS
from app.cli.console.files import read_bytes, to_json
from app.cli.console.signals import EXIT_STOPPED, stop_on_signal
from app.models.names import named_after
from app.render import text as terminal
from app.render.text import format_bytes, format_percent, table
from planner.pipeline.fits import fit
from planner.request.curve_and_fit_request import parse_fit

REASONS = {"": "fits", "proven": "does not fit, proven", "not_found": "no plan found", "refused": "unsupported size"}


def run(model: str, fields: Mapping[str, Any], output: Path | None, as_json: bool) -> int:
    """Exit code of the command: 0 done, 1 no size fits, 3 stopped, 4 internal error."""
    request = parse_fit({"execute": "auto", **fields}, SAVED_SECTIONS if output is not None else ())
    data = read_bytes(model)
    progress = terminal.ProgressPrinter()
    with stop_on_signal() as stop:
        try:
            found = fit(data, request, on_progress=progress, cancel=stop)
        finally:
            progress.close()
    if output is not None and found.outcome is not None:
        write_atomic(output, (to_json(named_after(model, data, found.outcome.report)) + "\n").encode())
    document = named_after(model, data, found.document)
    print(to_json(document) if as_json else "\n".join(lines(document)))
    return EXIT_STOPPED if stop.is_set() else found.exit_code


def lines(document: Mapping[str, Any]) -> list[str]:
    """The result in the first line, then one line per size tried."""
    what = document["dimension"] or "batch"
    rows = [
        (
            row["size"],
            format_bytes(row["peak_bytes"]) if row.get("peak_bytes") else "",
            format_bytes(row["needed_bytes"]) if row.get("needed_bytes") else "",
            format_percent(row["overhead"]) if row.get("overhead") is not None else "",
            REASONS[row["why"]],
            row["said"],
        )
        for row in document["tried"]
    ]
    limit = f"{format_bytes(document['budget_bytes'])} within {format_percent(document['max_overhead'])} overhead"
    if document["size"] is None:
        head = f"no {what} fits {limit}"
    else:
        plan = document["plan"]
        head = (
            f"{what} {document['size']} fits {limit}: peak {format_bytes(plan['peak_bytes'])}, "
            f"{format_percent(plan['overhead'])} slower"
        )
        if plan.get("offloaded"):
            head += f", {len(plan['offloaded'])} values copied to the host"
    text = [head, "", *table((what, "peak", "memory needed", "overhead", "", ""), rows, (0, 1, 2, 3))]
    return text + [f"warning: {warning}" for warning in document["warnings"]]
