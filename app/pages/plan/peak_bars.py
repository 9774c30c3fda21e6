"""Before/after bars of a plan: bytes at each peak by kind, on the scale of the budget slider below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WIDTH = 1000  # units of the bars' pictures
#: Kinds of bytes at a peak, in the order of the stack, with their colour in css/plan.css.
INKS = {
    "parameters": "kind-2",
    "optimizer": "kind-5",
    "gradients": "kind-4",
    "activations": "kind-1",
    "workspace": "kind-3",
    "reserve": "kind-6",
}


def peak_bars(report: Mapping[str, Any]) -> dict[str, Any]:
    """Template variables: `top` bytes of the scale, `rows` of parts, `kinds` shown, and where the budget is."""
    base, plan = report["baseline"], report["plan"]
    top = max(1, base["peak_bytes"], plan["peak_bytes"], plan["budget_bytes"] or 0)
    if plan["budget_bytes"] and plan["budget_bytes"] > 1.25 * max(base["peak_bytes"], plan["peak_bytes"]):
        top = max(1, base["peak_bytes"], plan["peak_bytes"])  # a far budget would flatten the bars
    rows = [_row("Before", base, top), _row("After", plan, top)]
    kinds = [kind for kind in INKS if any(kind == part["kind"] for row in rows for part in row["parts"])]
    budget = plan["budget_bytes"] if plan["budget_bytes"] and plan["budget_bytes"] <= top else None
    return {
        "top": top,
        "rows": rows,
        "kinds": [(kind, INKS[kind]) for kind in kinds],
        "budget_x": None if budget is None else round(WIDTH * budget / top, 2),
    }


def _row(name: str, measured: Mapping[str, Any], top: int) -> dict[str, Any]:
    """One bar; a part is `kind`, `ink`, `bytes`, and its place `x` and `width` in `WIDTH` units."""
    parts, at = [], 0
    for kind, ink in INKS.items():
        if count := max(0, measured["peak_by"].get(kind, 0)):
            place = {"x": round(WIDTH * at / top, 2), "width": round(WIDTH * count / top, 2)}
            parts.append({"kind": kind, "ink": ink, "bytes": count, **place})
            at += count
    return {"name": name, "bytes": measured["peak_bytes"], "parts": parts}
