"""One chart over the models of a batch: the overhead of every budget, one line a model, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from app.render import axes
from app.render.svg import Panel, label, picture, tag
from app.render.text import format_bytes, format_percent
from app.sweep.results import SUCCEEDED, Row

#: Colours of budgets in light and dark; further budgets start over.
LIGHT = ("#1769aa", "#b35900", "#2b7a3d", "#8a3fa0", "#a52a1b", "#5c5c5c")
DARK = ("#5eb3f0", "#f0a050", "#7ccf8f", "#c79be0", "#ff8b7d", "#aaaaaa")
#: Pixels: height of a model, space for names, width of the plot, space of the title, height of the axis.
MODEL_PX, NAMES_PX, PLOT_PX, TITLE_PX, BELOW_PX = 22, 250, 620, 44, 46
#: Budgets on a line of the legend, the width of each and the height of a line in pixels.
ACROSS, LEGEND_PX, LEGEND_LINE_PX = 5, 120, 18
MAX_NAME_CHARS = 34


def overhead_chart(models: Sequence[tuple[str, Sequence[Row]]], budgets: Sequence[str]) -> str:
    """SVG with a dot per plan within its budget; `models`: name and rows of each, from top to bottom."""
    plans = [(place, row) for place, (_, rows) in enumerate(models) for row in rows if row["state"] == SUCCEEDED]
    right = 1.06 * max((row["overhead"] for _, row in plans), default=0.0) or 0.01
    high = MODEL_PX * len(models)
    above = TITLE_PX + LEGEND_LINE_PX * -(-len(budgets) // ACROSS)
    frame = Panel(NAMES_PX, above, PLOT_PX, high, 0.0, right, max(1, len(models)))
    parts = frame.drawn(axes.share_labels(right, 8), {}, "overhead")
    for place, (name, _) in enumerate(models):
        y = frame.y + MODEL_PX * (place + 0.5)
        parts.append(tag("path", None, class_="grid", d=f"M{frame.x} {y}H{frame.x + frame.wide}"))
        parts.append(label(axes.printable(name, MAX_NAME_CHARS), frame.x - 8, y + 4, "end"))
    style = {budget: f"budget-{place % len(LIGHT)}" for place, budget in enumerate(budgets)}
    for place, budget in enumerate(budgets):
        x, y = frame.x + LEGEND_PX * (place % ACROSS), 48 + LEGEND_LINE_PX * (place // ACROSS)
        parts.append(tag("circle", None, class_=style[budget], cx=x, cy=y, r=5))
        parts.append(label(axes.printable(budget, 12), x + 10, y + 4))
    for place, row in plans:
        text = f"<title>{escape(_text(models[place][0], row))}</title>"
        y = frame.y + MODEL_PX * (place + 0.5)
        parts.append(tag("circle", text, class_=style[row["budget"]], cx=frame.x_of(row["overhead"]), cy=y, r=5))
    rules = tuple(
        "".join(f".budget-{place}{{fill:{colour}}}\n" for place, colour in enumerate(colours))
        for colours in (LIGHT, DARK)
    )
    description = "; ".join(_text(models[place][0], row) for place, row in plans) or "no plan within its budget"
    wide, tall = NAMES_PX + PLOT_PX + 24, above + high + BELOW_PX
    return picture(wide, tall, "Overhead of each model and budget", description, parts, (rules[0], rules[1]))


def _text(name: str, row: Row) -> str:
    """One plan as text."""
    peak, overhead = format_bytes(row["peak_bytes"]), format_percent(row["overhead"])
    return f"{axes.printable(name)}, {row['budget']}: {peak}, {overhead} slower"
