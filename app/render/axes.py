"""What pictures of memory and time share, whoever draws them: round scales, and long rows that keep their peaks."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.render.text import UNITS, format_bytes

#: First digits of what one may count in; the coarser ones for few words, the finer ones for tight scales.
COARSE_DIGITS = (1, 2, 2.5, 5, 10)
FINE_DIGITS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
#: A budget this much above all that is drawn is still drawn; one far above would flatten the picture.
HEADROOM = 1.25
MAX_NAME_CHARS = 48


class MemorySeries(NamedTuple):
    """Bytes of each step, with the first step at the peak and the largest value held there."""

    name: str  # "before" or "after"
    steps: Sequence[int]
    peak: int
    at: int  # the step; 0 where there is none
    holder: str  # "h14, 512.00 MiB"; empty where nothing is held

    def said(self) -> str:
        """The peak in words."""
        held = f"; largest holder {self.holder}" if self.holder else ""
        return f"{self.name}: peak {format_bytes(self.peak)} at step {self.at} of {len(self.steps)}{held}"


def series_of(report: Mapping[str, Any]) -> tuple[MemorySeries, MemorySeries]:
    """A report's memory before and after; the report must have its timeline."""
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
    """A name that fits a picture: control characters replaced, and cut where it is long."""
    clean = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in name)
    return clean if len(clean) <= longest else clean[: longest - 3] + "..."


def column_maxima(values: Sequence[float], columns: int, whole: int = 0) -> list[float]:
    """The highest of the values of each column, where `whole` steps, at least those given, share the columns."""
    whole = max(whole, len(values))
    count = min(columns, whole)
    cuts = [i * whole // count for i in range(count + 1)] if count else [0]
    return [max(values[a:b]) for a, b in itertools.pairwise(cuts) if a < len(values)]


def round_up(least: float, digits: Sequence[float] = COARSE_DIGITS) -> float:
    """The smallest of the round numbers, `digits` times a power of ten, that is not below a positive one."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in digits if digit * power >= least * (1 - 1e-9))


def unit_of(top: float) -> tuple[float, str]:
    """The unit to count `top` bytes in: its bytes, and its name."""
    power = 0
    while top >= 1024 and power < len(UNITS) - 1:
        top, power = top / 1024, power + 1
    return 1024.0**power, UNITS[power]


def byte_step(top: float, most: int, digits: Sequence[float] = COARSE_DIGITS) -> float:
    """A round number of bytes of which `most` reach `top`; never a part of a byte where bytes are the unit."""
    unit, _ = unit_of(top)
    step = unit * round_up(top / unit / most, digits)
    return step if unit > 1 else float(math.ceil(step))


def ticks(low: float, high: float, step: float) -> list[float]:
    """The multiples of `step` from `low` to `high`."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def byte_label(count: float, top: float) -> str:
    """A tick in the unit of the scale: `0.5 GiB`."""
    unit, name = unit_of(top)
    return "0" if not count else f"{count / unit:g} {name}"


def drawn_budget(budget: int | None, top: float) -> int | None:
    """The budget where it belongs into the picture; None: there is none, or it lies far above."""
    return budget if budget and budget <= HEADROOM * max(top, 1) else None


def share_label(share: float) -> str:
    """A tick of a scale of shares: `2.5%`."""
    return f"{100 * share:.4g}%"


def budget_of(point: Mapping[str, Any]) -> int:
    """Where a point of a curve stands: its budget in bytes, or where it asks for the lowest peak, that."""
    return int(point["budget_bytes"] or point["peak_bytes"])
