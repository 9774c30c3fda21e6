"""Charts of a plan that the service renders as SVG: address map, curve of a graph's plans, graph by layers, engines."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from app.errors import Gone
from app.render import axes
from app.render import svg as plots
from app.render.plan.columns import KINDS, decode_columns, memory, names
from app.render.plan.engines import engine_chart
from app.render.plan.graph_layers import graph_columns
from app.render.plan.trace import trace
from app.render.text import format_bytes

#: Colours of `KINDS` in the light and dark scheme; same as in css/plan.css.
LIGHT = ("#b25c00", "#6a707a", "#6a707a", "#7a6a2f", "#2563a8", "#8a4a9e", "#3f8a96", "#2b7d5b")
DARK = ("#e0a050", "#9aa2af", "#9aa2af", "#c9b66a", "#6ea8e6", "#c693d6", "#79c4cf", "#69c09b")
MAX_ROWS = 200  # layers per chart


def address_map(figures: bytes, sections: Mapping[str, bytes], name: str) -> str:
    """SVG of the address map: one path per kind, with all its rectangles."""
    meta, columns = decode_columns(memory(figures, sections))
    steps, arena = max(1, len(columns["after"])), max(1, meta["arena_bytes"] or 0)
    frame = plots.Panel(86, 84, 846, 440, 0, steps, arena)
    parts = frame.drawn(axes.step_labels(steps), axes.byte_labels(0, arena, 6), "step", "offset in the arena")
    across, up = frame.wide / steps, frame.high / arena
    left = frame.x + columns["first"] * across
    wide = np.maximum((columns["last"] + 1 - columns["first"]) * across, 0.2)
    high = np.maximum(columns["bytes"] * up, 0.2)
    top = frame.y + frame.high - (columns["offset"] + columns["bytes"]) * up
    kinds = np.unique(columns["kind"]).tolist()
    for kind in kinds:
        of = np.flatnonzero(columns["kind"] == kind).tolist()
        path = "".join(f"M{left[i]:.2f} {top[i]:.2f}h{wide[i]:.2f}v{high[i]:.2f}h-{wide[i]:.2f}z" for i in of)
        parts.append(plots.tag("path", None, class_=f"kind kind{kind}", d=path))
    for place, kind in enumerate(kinds):
        x = 92 + 105 * place
        parts.append(plots.tag("rect", None, class_=f"kind kind{kind}", x=x - 6, y=46, width=12, height=12))
        parts.append(plots.label(KINDS[kind], x + 12, 56))
    title = f"{axes.printable(name)}: address map"
    description = f"{len(columns['first'])} rectangles over {steps} steps in an arena of {format_bytes(arena)}"
    return plots.picture(960, 580, title, description, parts, _kind_rules())


def _kind_rules() -> tuple[str, str]:
    """CSS rules of the kinds, light and dark."""
    edge = ".kind{stroke-width:.4;stroke:#fff}"
    light, dark = ("".join(f".kind{k}{{fill:{ink}}}" for k, ink in enumerate(inks)) for inks in (LIGHT, DARK))
    return edge + light, ".kind{stroke:#16181c}" + dark


def curve(
    points: Sequence[Mapping[str, Any]],
    chosen: str,
    name: str,
    *,
    linked: bool = True,
    size: plots.CurveSize = plots.WIDE,
) -> str:
    """SVG of the Pareto front of one graph's plans over the budget; `chosen` has a ring, points link if `linked`."""
    shown = pareto_front(points)
    own = next(point for point in points if point["id"] == chosen)
    places = [axes.budget_of(point) for point in (*shown, own)]
    low, high = min(places), max(places)
    times = [point["overhead"] for point in (*shown, own) if point["status"] != "over_budget"]
    top = 1.12 * (max(times, default=0.0) or 0.01)
    frame = size.panel(60, low, high, top)
    parts = frame.drawn(axes.byte_labels(low, high, size.ticks), axes.share_labels(top, 6), "budget", "overhead")
    parts += plots.curve_lines(frame, shown, axes.budget_of)
    missed = own["status"] == "over_budget"
    x, y = frame.x_of(axes.budget_of(own)), frame.y if missed else frame.up(own["overhead"])
    parts.append(plots.tag("circle", None, class_="ring", cx=x, cy=y, r=8))
    at_left = x >= size.wide - 120
    parts.append(plots.label("this plan", x + (-12 if at_left else 12), y - 8, "end" if at_left else ""))
    for point in shown if linked else ():
        x = frame.x_of(axes.budget_of(point))
        y = frame.y if point["status"] == "over_budget" else frame.up(point["overhead"])
        hit = plots.tag("circle", None, class_="hit", cx=x, cy=y, r=9)
        parts.append(plots.tag("a", hit, href=f"/plans/{point['id']}", **{"tabindex": -1, "aria-hidden": "true"}))
    description = f"{len(points)} plans; this one at {format_bytes(axes.budget_of(own))}"
    rules = (".ring{stroke:#333;stroke-width:2;fill:none}.hit{fill-opacity:0}", ".ring{stroke:#eee}")
    return plots.picture(size.wide, size.high, size.title(name), description, parts, rules)


def inline_svg(svg: str) -> Markup:
    """The SVG without its style, to inline in a page: the content security policy forbids inline styles."""
    head, _, rest = svg.partition("<style>")
    head = head.replace('role="img"', 'role="group"', 1)  # a group may contain links, an image may not
    return Markup(head + rest.partition("</style>")[2])  # text was escaped when it was drawn


def pareto_front(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Plans of one graph that are faster than every plan within a tighter budget, and the missed budgets.

    Lower bounds are tightened: the bound of a looser budget also holds for a tighter one.
    """
    rows = sorted((dict(point) for point in points), key=lambda point: (axes.budget_of(point), point["overhead"]))
    fastest, front = float("inf"), []
    for point in rows:
        if point["status"] != "over_budget" and point["overhead"] >= fastest:
            continue
        if point["status"] != "over_budget":
            fastest = point["overhead"]
        front.append(point)
    bound = 0.0
    for point in sorted(rows, key=axes.budget_of, reverse=True):
        bound = max(bound, point["bound_overhead"] or 0.0) if point["status"] != "over_budget" else bound
        point["bound_overhead"] = min(bound, point["overhead"])
    return front


def layers(figures: bytes, sections: Mapping[str, bytes], name: str) -> str:
    """SVG of the graph by layers: nodes, recomputed nodes, and activations that the backward pass reads."""
    _, columns = decode_columns(graph_columns(figures, sections))
    layer_names: list[str] = columns["layers"]
    layer, recomputed, phase = columns["layer"], columns["runs"] > 1, columns["phase"]
    counts = np.bincount(layer, minlength=len(layer_names))
    recomputed_counts = np.bincount(layer[recomputed], minlength=len(layer_names))
    reader = np.repeat(np.arange(len(layer)), np.diff(columns["read_pointer"]))
    read = columns["read_node"]
    saved = np.unique(read[(read >= 0) & (phase[reader] == 1)])
    saved = saved[phase[saved] == 0]
    kept_bytes, recomputed_bytes = (
        np.bincount(layer[of], weights=columns["written"][of], minlength=len(layer_names))
        for of in (saved[~recomputed[saved]], saved[recomputed[saved]])
    )
    rows = np.flatnonzero(counts)[:MAX_ROWS].tolist()
    widest = max(1.0, float((kept_bytes + recomputed_bytes).max(initial=0)))
    parts = [
        plots.label("block", 20, 56),
        plots.label("nodes", 330, 56, "end"),
        plots.label("recomputed", 420, 56, "end"),
        plots.label("activations read by the backward pass: kept, recomputed", 450, 56),
    ]
    for place, k in enumerate(rows):
        y, split = 78 + 18 * place, round(360 * kept_bytes[k] / widest, 1)
        saved_bytes = kept_bytes[k] + recomputed_bytes[k]
        bars = (("kind4", 450, split), ("kind0", 450 + split, round(360 * recomputed_bytes[k] / widest, 1)))
        parts += [
            plots.label(axes.printable(layer_names[k], 36), 20, y),
            plots.label(f"{counts[k]:,}", 330, y, "end"),
            plots.label(f"{recomputed_counts[k]:,}" if recomputed_counts[k] else "", 420, y, "end"),
            *(plots.tag("rect", None, class_=kind, x=x, y=y - 10, width=wide, height=11) for kind, x, wide in bars),
            plots.label(format_bytes(saved_bytes) if saved_bytes else "", 940, y, "end"),
        ]
    left = int((counts > 0).sum()) - len(rows)
    if left:
        parts.append(plots.label(f"and {left:,} more", 20, 78 + 18 * len(rows)))
    title = f"{axes.printable(name)}: graph by blocks"
    description = f"{len(layer)} nodes in {int((counts > 0).sum())} blocks, {int(recomputed.sum())} recomputed"
    return plots.picture(960, 100 + 18 * (len(rows) + bool(left)), title, description, parts, _kind_rules())


def engines(figures: bytes, sections: Mapping[str, bytes], name: str) -> str:
    """SVG of the engines over time. Raises Gone for a plan without copies."""
    return engine_chart(sections, name, _kind_rules())


def render(task: str, figures: bytes, sections: Mapping[str, bytes]) -> bytes:
    """Gzipped columns (`memory`, `names`, `graph`), a chart as a file, or the trace; for `app.solver.child_tasks`.

    Raises Gone for the address map of a plan without layout, and for the engines of one without copies.
    """
    if task in COLUMNS:
        return gzip.compress(COLUMNS[task](figures, sections), compresslevel=1, mtime=0)
    name, _, form = task.partition(".")
    report = msgspec.json.decode(figures)
    if name == "trace":
        return msgspec.json.encode(trace(report | {"source": msgspec.json.decode(sections["source"])}))
    if name == "timeline":
        svg = plots.timeline(report | {"timeline": msgspec.json.decode(sections["timeline"])})
    else:
        if name == "map" and "layout" not in sections:
            raise Gone("the plan has no layout; plan it with layout fast or best")
        svg = PICTURES[name](figures, sections, str(report["model"].get("name") or "model"))
    return plots.png(svg) if form == "png" else svg.encode(errors="replace")


COLUMNS = {"memory": memory, "names": names, "graph": graph_columns}
PICTURES = {"map": address_map, "graph": layers, "engines": engines}
