"""Preview of a large plan's charts: computed with the plan, inlined in the page, shown until the columns arrive.

Columns in the format of `columns.py`: `map`, the address map, one byte per pixel (`CLEAR`: free; else twice the kind,
plus one for a value of odd index, plus `EDGE` at the right and upper edge of a large rectangle); `after` and `before`,
the maximum bytes of `WIDTH` parts of the steps. The page scales both to its own size.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from app.render import axes
from app.render.plan import columns as pictures

SECTION = "sketch"  # section of a stored plan; JSON
WIDTH, HEIGHT = 1184, 418  # pixels; size of the map on a common screen
MIN_RECTANGLES = 10_000  # smaller plans need no preview
CLEAR, EDGE = 255, 64
MIN_EDGED_PIXELS = 4  # pixels


def encode_preview(report: Mapping[str, Any]) -> bytes | None:
    """Preview section of a report with timeline, layout and source; None for a small plan or one without layout."""
    if len(report.get("layout", {}).get("value", ())) < MIN_RECTANGLES:
        return None
    layout = msgspec.convert(report["layout"], pictures.LayoutColumns)
    plan = msgspec.convert(report["plan"], pictures.PlanSummary)
    source = msgspec.convert(report["source"], pictures.SourceGraph)
    rects = pictures.rectangles(plan, source, layout)
    timeline, arena = msgspec.convert(report["timeline"], pictures.TimelineColumns), plan.arena_bytes or 1
    after, before = timeline.step_bytes, timeline.baseline_step_bytes
    meta = {
        "arena_bytes": arena,
        "budget_bytes": plan.budget_bytes,
        "wide": WIDTH,
        "high": HEIGHT,
        "steps": {"after": len(after), "before": len(before)},
    }
    columns = {
        "map": rasterize(rects, max(1, len(after)), arena).reshape(-1),
        **{
            name: np.array(axes.column_maxima(of, WIDTH), np.int64)
            for name, of in (("after", after), ("before", before))
        },
    }
    small = gzip.compress(pictures.encode_columns(meta, columns, {}), compresslevel=9, mtime=0)
    return msgspec.json.encode(base64.b64encode(small).decode())


def inline_preview(section: bytes) -> str:
    """Columns of the section, gzipped and in base64, to inline in a page."""
    return msgspec.json.decode(section, type=str)


def rasterize(rects: Mapping[str, np.ndarray], steps: int, arena: int) -> np.ndarray:
    """uint8[HEIGHT, WIDTH]: the address map, painted as raster.js does. O(pixels painted)."""
    across, up = WIDTH / steps, HEIGHT / arena
    left = _rounded(rects["first"] * across)
    right = np.maximum(_rounded((rects["last"] + 1) * across), left + 1)
    above = HEIGHT - _rounded((rects["offset"] + rects["bytes"]) * up)
    below = HEIGHT - _rounded(rects["offset"] * up)
    above = np.where(below <= above, below - 1, above)
    tone = 2 * rects["kind"].astype(np.int64) + (rects["value"] & 1)
    edged = (right - left >= MIN_EDGED_PIXELS) & (below - above >= MIN_EDGED_PIXELS)
    grid = np.full((HEIGHT, WIDTH), CLEAR, np.uint8)
    rows = zip(*(column.tolist() for column in (left, right, above.clip(0), below, tone, edged)), strict=True)
    for begin, end, high, low, ink, has_edge in rows:
        grid[high:low, begin:end] = ink
        if has_edge:
            grid[high:low, end - 1 : end] = grid[high : high + 1, begin:end] = EDGE + ink
    return grid


def _rounded(at: np.ndarray) -> np.ndarray:
    """Rounding of JavaScript's Math.round."""
    return np.floor(at + 0.5).astype(np.int64)
