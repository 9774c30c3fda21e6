"""Engines of a plan over time: compute, copies to the host and back, and collectives, each in a row.

compute     ██████████████ ████████████████     gaps: compute waits for a copy
to host       ████ ████
from host              ███  ████
            └───────────────────────────────▶ seconds
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from app.errors import Gone
from app.render import axes
from app.render import svg as plots
from app.render.text import format_percent, format_seconds

#: Engines in the order of the rows, with the label and the colour (see `KINDS` in columns.py) of each.
ENGINES = {"compute": ("compute", 4), "to_host": ("to host", 0), "from_host": ("from host", 7)}
COLLECTIVES = {"communication": ("collectives", 3)}
ROW, BAR = 40, 22  # pixels
NARROWEST = 0.2  # pixels of an entry, and of a gap between two


class EngineColumns(msgspec.Struct, gc=False):
    """`engines` of a report's section `timeline`: engine, start and end in seconds of each entry of the order."""

    engine: list[str]
    start: list[float]
    end: list[float]


class Timeline(msgspec.Struct, gc=False):
    """Fields of a report's section `timeline` that the chart uses."""

    engines: EngineColumns | None = None


def engine_chart(sections: Mapping[str, bytes], name: str, rules: tuple[str, str]) -> str:
    """SVG of the rows; `rules` colour the kinds, light and dark. Raises Gone for a plan without copies."""
    engines = msgspec.json.decode(sections["timeline"], type=Timeline).engines
    if engines is None:
        raise Gone("nothing runs beside compute in the plan; plan it with offload or overlap")
    engine, start, end = np.asarray(engines.engine), np.asarray(engines.start), np.asarray(engines.end)
    whole = float(end.max(initial=0.0)) or 1.0
    copies = {key: row for key, row in ENGINES.items() if key == "compute" or (engine == key).any()}
    rows = {**copies, **COLLECTIVES} if (engine == "communication").any() else ENGINES
    frame = plots.Panel(96, 60, 836, ROW * len(rows), 0, whole, 1)
    ticks = {x: format_seconds(x) for x in axes.ticks(0, whole, axes.round_up(whole / 8))}
    parts, shares = frame.drawn(ticks, {}, "time"), []
    for row, (key, (words, kind)) in enumerate(rows.items()):
        own = np.flatnonzero((engine == key) & (end > start))
        first, last = _merged(start[own] * frame.wide / whole, end[own] * frame.wide / whole)
        top = frame.y + ROW * row + (ROW - BAR) / 2
        path = "".join(
            f"M{frame.x + x:.2f} {top}h{wide:.2f}v{BAR}h-{wide:.2f}z"
            for x, wide in zip(first.tolist(), (last - first).tolist(), strict=True)
        )
        parts.append(plots.label(words, frame.x - 8, top + BAR / 2 + 4, "end"))
        parts.append(plots.tag("path", None, class_=f"kind kind{kind}", d=path))
        shares.append(f"{words} {format_percent(float((end - start)[own].sum()) / whole)}")
    parts.append(plots.label(f"busy: {', '.join(shares)} of {format_seconds(whole)}", frame.x, 50))
    title = f"{axes.printable(name)}: engines over time"
    return plots.picture(960, int(frame.y + frame.high) + 50, title, f"busy: {', '.join(shares)}", parts, rules)


def _merged(first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intervals in pixels, those with no visible gap between them as one."""
    by = np.argsort(first, kind="stable")
    first, last = first[by], np.maximum.accumulate(np.maximum(last[by], first[by] + NARROWEST))
    begins = np.append(True, first[1:] > last[:-1] + NARROWEST)[: len(first)]
    return first[begins], last[np.append(begins[1:], True)[: len(first)]]
