"""`remat measure`: peak and time of a step of a PyTorch module with and without a plan, beside the prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.atomic_files import write_atomic
from app.cli.console import framework_process
from app.cli.console.files import demand_writable, read_report, to_json
from app.errors import BadUsage
from app.render.text import format_bytes, format_percent, format_seconds, table

# Imports inside functions: the client is loaded where a service gets the measurement.

#: The process that runs the steps: PyTorch, or the steps themselves, may take it down.
CHILD = "remat.torch.measurement"
KINDS = {"baseline": "without a plan", "plan": "with the plan"}


def run(
    target: str,
    fields: Mapping[str, Any],
    plan: Path | None,
    arena: bool,
    timing: Mapping[str, float | None],
    server: str | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Measure steps, print the measurement, and send it to the service of the plan.

    Parameters:
        timing: `steps` and `timing_seconds` of `remat.torch.measure_plan`.

    Returns:
        The exit code: 1 if the plan is over its budget.
    """
    if (plan is None) == (fields.get("budget") is None):
        raise BadUsage("give --budget or --plan, and not both", code="conflicting_flags")
    if plan is None and server is not None:
        raise BadUsage("--server needs a plan of that service: save the file of its page, and name it with --plan")
    seconds = timing["timing_seconds"]
    if seconds is not None and not math.isfinite(seconds):
        raise BadUsage(f"--timing-seconds {seconds}: give a finite number")
    demand_writable({plan: "the plan", target.rpartition(":")[0]: "the module"}, output)
    report = None if plan is None else read_report(str(plan))
    request = {"target": target, **timing, "memory": "arena" if arena else "allocator", **fields}
    if plan is not None:
        request["plan"] = str(plan)
    document = framework_process.answer(CHILD, request, target, "ran the steps", code="not_measured")
    text = to_json(document)
    if output is not None:
        write_atomic(output, text.encode())
    print(text if as_json else "\n".join(lines(document)), flush=True)  # whether the service takes it or not
    if server is not None and report is not None:
        _send(document, report["id"], server)
    return 1 if document["status"] == "over_budget" else 0


def _send(document: Mapping[str, Any], plan_id: str, server: str) -> None:
    """Store the measurement on the service of the plan. Raises BadUsage."""
    from app.client.blocking import Client, ClientError

    try:
        with Client(server) as client:
            client.add_measurement(plan_id, document)
    except ClientError as error:
        raise BadUsage(f"{server}: the measurement was not stored: {error}", code="not_stored") from error


def lines(document: Mapping[str, Any]) -> list[str]:
    """A measurement as text."""
    first = f"{document['model']} on {document['device']}, PyTorch {document['torch']}, {document['steps']} timed steps"
    rows: list[tuple[str, ...]] = []
    for name, figure, form in (("peak", "peak_bytes", format_bytes), ("time", "seconds", format_seconds)):
        for kind, words in KINDS.items():
            found, predicted = document[kind][figure], document[kind][f"predicted_{figure}"]
            off = f"{found / predicted - 1:+.1%}" if predicted else ""
            rows.append((f"{name} {words}", form(found), form(predicted), off))
    rows.append(("overhead", _overhead(document), format_percent(document["predicted_overhead"]), ""))
    head = ("", "measured", "predicted", "measured / predicted")
    return [f"{first}; peaks by {document['counter']}", "", *table(head, rows, (1, 2, 3))]


def _overhead(document: Mapping[str, Any]) -> str:
    """Measured overhead with its standard error in points: `10.0% ± 0.4`."""
    error = document["overhead_error"]
    return format_percent(document["overhead"]) + ("" if error is None else f" ± {100 * error:.1f}")
