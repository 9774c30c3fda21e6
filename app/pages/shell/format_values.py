"""Formatted quantities of pages (Jinja filters). A value that was not measured says so instead of showing zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup

from app.render.text import UNITS

NOT_MEASURED = Markup('<span class="none">not measured</span>')
MINUS = "−"
MIN_SCALED = 0.1  # of the unit of a column; less loses its digits, and has a unit of its own
MAX_INPUTS, MAX_STORED_INPUTS = 2, 16  # shown, and stored of a graph


def byte_unit_of(counts: list[int | None]) -> int:
    """Index of the unit for a column of bytes: that of its median."""
    known = sorted(abs(count) for count in counts if count)
    middle = known[len(known) // 2] if known else 0
    return min(len(UNITS) - 1, (max(1, middle).bit_length() - 1) // 10)


def format_bytes(count: float | None, unit: int | None = None) -> str:
    """Bytes: `3.91 GiB`; `unit`: index of the column's unit."""
    if count is None:
        return NOT_MEASURED
    if unit is None:
        unit = byte_unit_of([int(count)])
    amount = count / 1024**unit
    digits = 0 if unit == 0 or abs(amount) >= 1000 else 1 if abs(amount) >= 100 else 2
    return _signed(f"{amount:.{digits}f} {UNITS[unit]}")


TIME_UNITS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (float("inf"), 1 / 60, "min"))


def time_unit_of(times: list[float | None]) -> tuple[float, str]:
    """(units per second, name) of the unit for a column of times: that of its median."""
    known = sorted(abs(span) for span in times if span)
    middle = known[len(known) // 2] if known else 1.0
    return next((scale, unit) for limit, scale, unit in TIME_UNITS if middle < limit)


def format_scaled(amount: float | None, scale: float = 1.0) -> str:
    """A number of a column with the unit in its heading: two decimals; `< 0.01` instead of a rounded zero."""
    if amount is None:
        return NOT_MEASURED
    shown = amount * scale
    return "< 0.01" if 0 < abs(shown) < 0.005 else _signed(f"{shown:,.2f}")


def format_column_bytes(count: float | None, unit: int) -> str:
    """Bytes of a column in the unit of index `unit`, which its heading has; a small count in a unit of its own."""
    is_small = count is not None and 0 < count < MIN_SCALED * 1024**unit
    return format_bytes(count) if is_small else format_scaled(count, 1 / 1024**unit)


def format_column_seconds(span: float | None, scale: float) -> str:
    """A time of a column in the unit of `scale` per second, which its heading has; a short one in a unit of its own."""
    is_small = span is not None and 0 < span * scale < MIN_SCALED
    return format_seconds(span) if is_small else format_scaled(span, scale)


def format_percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as percentage: `3.4%`."""
    return NOT_MEASURED if fraction is None else _signed(f"{100 * fraction:.{digits}f}%")


def format_seconds(span: float | None) -> str:
    """A time with 3 significant digits, in the unit that leaves one to three before the point."""
    if span is None:
        return NOT_MEASURED
    if span == 0:
        return "0 s"
    scale, unit = time_unit_of([span])
    return _signed(f"{span * scale:.3g} {unit}")


def format_estimate(span: float | None) -> str:
    """An estimated time: `50 s`, `12 min`, `3.5 h`."""
    if span is None:
        return NOT_MEASURED
    return f"{span:.0f} s" if span < 90 else f"{span / 60:.0f} min" if span < 5400 else f"{span / 3600:.1f} h"


def format_timestamp(at: str | None) -> str:
    """A timestamp as a `<time>` element; a script adds the local time."""
    if at is None:
        return Markup("—")
    shown = f"{at[:10]} {at[11:16]} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at, shown)


def format_count(count: float | None) -> str:
    """A count with thousands separators: `12,345`."""
    return NOT_MEASURED if count is None else f"{count:,}"


def format_shape(row: Mapping[str, Any]) -> str:
    """Batch and inputs of a graph or plan, `batch 16, float32[16,3,224,224]`; empty if neither is known."""
    inputs = [each for each in row["inputs"] or () if each["dtype"] and each["shape"] is not None]
    shown = [f"{each['dtype']}[{','.join(map(str, each['shape']))}]" for each in inputs[:MAX_INPUTS]]
    if len(inputs) > MAX_INPUTS:
        shown[-1] += " and more" if len(inputs) >= MAX_STORED_INPUTS else f" and {len(inputs) - MAX_INPUTS} more"
    return ", ".join(([] if row["batch"] is None else [f"batch {row['batch']}"]) + shown)


def format_or_dash(value: float | None, name: str, *arguments: Any) -> str:
    """The value by the filter `name`, or a dash for None."""
    return "—" if value is None else FILTERS[name](value, *arguments)


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


FILTERS: dict[str, Callable[..., str]] = {
    "size": format_bytes,
    "scaled": format_scaled,
    "column_size": format_column_bytes,
    "column_seconds": format_column_seconds,
    "share": format_percent,
    "seconds": format_seconds,
    "estimate": format_estimate,
    "timestamp": format_timestamp,
    "number": format_count,
    "or_dash": format_or_dash,
    "shape": format_shape,
}
