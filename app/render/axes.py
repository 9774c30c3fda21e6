"""Shared parts of the charts: round scales, tick labels, downsampling that keeps peaks."""

from __future__ import annotations

import itertools
import math
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.render.text import UNITS, format_bytes

#: Leading digits of round numbers: coarse for tick labels, fine for tight scales.
COARSE_DIGITS = (1, 2, 2.5, 5, 10)
FINE_DIGITS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
#: Draw a budget up to this factor above the series; a higher one would flatten the chart.
HEADROOM = 1.25
MAX_NAME_CHARS = 48


class MemorySeries(NamedTuple):
    """Bytes of each step, with the first peak step and the largest value live there."""

    name: str  # "before" or "after"
    steps: Sequence[int]
    peak: int
    at: int  # first step at the peak; 0 without steps
    holder: str  # "h14, 512.00 MiB"; empty if nothing is live

    def caption(self) -> str:
        """The peak as text."""
        held = f"; largest value {self.holder}" if self.holder else ""
        return f"{self.name}: peak {format_bytes(self.peak)} at step {self.at} of {len(self.steps)}{held}"


def series_of(report: Mapping[str, Any]) -> tuple[MemorySeries, MemorySeries]:
    """Memory before and after, of a report with a timeline."""
    drawn = report["timeline"]
    return (
        _series("before", drawn["baseline_step_bytes"], drawn.get("baseline_holder")),
        _series("after", drawn["step_bytes"], drawn.get("holder")),
    )


def _series(name: str, steps: Sequence[int], holder: Mapping[str, Any] | None) -> MemorySeries:
    peak = max(steps, default=0)
    held = f"{printable(holder['value'])}, {format_bytes(holder['bytes'])}" if holder else ""
    return MemorySeries(name, steps, peak, steps.index(peak) if steps else 0, held)


def printable(name: str, longest: int = MAX_NAME_CHARS) -> str:
    """A name for a chart: control characters replaced, cut to `longest` characters."""
    clean = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in name)
    return clean if len(clean) <= longest else clean[: longest - 3] + "..."


def column_maxima(values: Sequence[float], columns: int, total: int = 0) -> list[float]:
    """Maximum of the values in each column, where max(total, len(values)) steps span all columns."""
    total = max(total, len(values))
    count = min(columns, total)
    cuts = [i * total // count for i in range(count + 1)] if count else [0]
    return [max(values[a:b]) for a, b in itertools.pairwise(cuts) if a < len(values)]


def round_up(minimum: float, digits: Sequence[float] = COARSE_DIGITS) -> float:
    """Smallest round number (one of `digits` times a power of ten) that is at least `minimum` >= 0, and above 0."""
    minimum = max(minimum, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(digit * power for digit in digits if digit * power >= minimum * (1 - 1e-9))


def unit_of(top: float) -> tuple[float, str]:
    """(bytes, name) of the unit for a scale up to `top` bytes."""
    power = 0
    while top >= 1024 and power < len(UNITS) - 1:
        top, power = top / 1024, power + 1
    return 1024.0**power, UNITS[power]


def byte_step(top: float, count: int, digits: Sequence[float] = COARSE_DIGITS) -> float:
    """Round number of bytes of which `count` reach `top`; an integer if the unit is bytes."""
    unit, _ = unit_of(top)
    step = unit * round_up(top / unit / count, digits)
    return step if unit > 1 else float(math.ceil(step))


def ticks(low: float, high: float, step: float) -> list[float]:
    """Multiples of `step` from `low` to `high`."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def byte_label(count: float, top: float) -> str:
    """Tick label in the unit of the scale: `0.5 GiB`."""
    unit, name = unit_of(top)
    return "0" if not count else f"{count / unit:g} {name}"


def step_labels(steps: int) -> dict[float, str]:
    """Position -> label of about ten ticks from 0 to `steps`."""
    step = max(1.0, round_up(steps / 10))
    return {x: f"{x:,.0f}" for x in ticks(0, steps, step) if x == int(x)}


def byte_labels(low: float, high: float, count: int) -> dict[float, str]:
    """Position -> label of about `count` ticks from `low` to `high` bytes; at least one."""
    labels = {x: byte_label(x, high) for x in ticks(low, high, byte_step(high - low or 1, count))}
    return labels or {low: format_bytes(low)}


def share_labels(top: float, count: int) -> dict[float, str]:
    """Position -> label of about `count` ticks from 0 to the fraction `top`."""
    return {y: share_label(y) for y in ticks(0, top, round_up(top / count))}


def drawn_budget(budget: int | None, top: float) -> int | None:
    """The budget if it is drawn; None without a budget, or far above `top`."""
    return budget if budget and budget <= HEADROOM * max(top, 1) else None


def share_label(share: float) -> str:
    """Tick label of a fraction: `2.5%`."""
    return f"{100 * share:.4g}%"


def budget_of(point: Mapping[str, Any]) -> int:
    """Horizontal position of a curve's point: its budget in bytes, or its peak if it has no budget."""
    return int(point["budget_bytes"] or point["peak_bytes"])


def copied_points(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The plans with copies to the host that are within their budgets, as points of a curve, tightest budget first."""
    met = [point for point in points if (point.get("copied") or {}).get("within_budget")]
    return [{**point, **point["copied"], "status": "found"} for point in sorted(met, key=budget_of)]
