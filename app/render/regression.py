"""A regression check as text: the verdict, the figures, what to blame, the largest batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.render.text import format_bytes, format_percent, format_seconds

FIGURE_NAMES = {
    "baseline.peak_bytes": "baseline peak",
    "baseline.seconds": "baseline time",
    "plan.peak_bytes": "peak with the plan",
    "plan.seconds": "time with the plan",
}
CANNOT_RUN = "drifted: the plan does not run on this model"


def headline(document: Mapping[str, Any]) -> str:
    """The verdict in one line, the worst finding first."""
    if not document["replay"]["runs"]:
        return f"{CANNOT_RUN}: {document['replay']['why']}"
    grown = [row for row in document["figures"] if row["what"] in document["drifted"]]
    growth = [f"{FIGURE_NAMES[row['what']]} grew by {drift(row).lstrip('+')}" for row in grown]
    limit = f"more than {format_percent(document['max_drift'])}"
    if document["over_budget"]:
        peak = next(row["now"] for row in document["figures"] if row["what"] == "plan.peak_bytes")
        over = f"over budget: the plan peaks at {format_bytes(peak)} of {format_bytes(document['budget_bytes'])}"
        return "; ".join([over, *growth])
    return f"drifted: {', '.join(growth)}: {limit}" if growth else f"holds: nothing grew by {limit}"


def figure_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(figure, saved, current, growth) of peak and time, without the plan and with it."""
    return [(FIGURE_NAMES[row["what"]], *_before_and_now(row), drift(row)) for row in document["figures"]]


def _before_and_now(row: Mapping[str, Any]) -> tuple[str, str]:
    form = format_bytes if row["what"].endswith("bytes") else format_seconds
    return form(row["was"]), "cannot run" if row["now"] is None else form(row["now"])


def drift(row: Mapping[str, Any]) -> str:
    """Growth of a figure in percent, with its sign."""
    if row["drift"] is None:
        return "" if row["now"] is None else "from nothing"
    return f"{100 * row['drift']:+.2f}%"


def grown_values(document: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(figure, values that hold more at it) of each peak that drifted, or, of the plan, is over the budget."""
    for part in ("baseline", "plan"):
        figure, rows = f"{part}.peak_bytes", document["holds_more"].get(part, [])
        regressed = figure in document["drifted"] or (document["over_budget"] and part == "plan")
        if regressed and rows:
            yield FIGURE_NAMES[figure], rows


def slower_nodes(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Nodes that take longer than before, if a time drifted."""
    drifted = any(what.endswith("seconds") for what in document["drifted"])
    return list(document["takes_longer"]) if drifted else []


def shapes(row: Mapping[str, Any]) -> str:
    """Dtype and shape of a row: `float32[64,64]`, or `float32[64,64] → float32[128,64]` if they changed."""
    before, now = row["type_was"], row["type_now"]
    return f"{before} → {now}" if before and now and before != now else now or ""


def producer(row: Mapping[str, Any]) -> str:
    """The node that makes a value."""
    return row["node"] or "graph input"


def largest_batch(document: Mapping[str, Any]) -> tuple[str, str]:
    """(the line about the largest batch, why a size is unknown); empty if the check has none."""
    found = document.get("largest_batch")
    if not found:
        return "", ""
    was, now = (_batch(found[side]) for side in ("was", "now"))
    line = f"largest batch that fits {found['fits']} with this plan: {was} → {now}"
    return line, "; ".join(dict.fromkeys(reason for reason in found["why"].values() if reason))


def _batch(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,}" if size else "none"
