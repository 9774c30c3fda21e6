"""Figures as pages write them. What was not measured is said to be so, and never drawn as zero."""

from __future__ import annotations

from markupsafe import Markup, escape

from app.render.text import UNITS

NOT_MEASURED = Markup('<span class="none">not measured</span>')
MINUS = "−"


def byte_unit_of(counts: list[int | None]) -> int:
    """Index of the unit that a whole column of bytes is written in: that of its median."""
    known = sorted(abs(count) for count in counts if count)
    middle = known[len(known) // 2] if known else 0
    return min(len(UNITS) - 1, (max(1, middle).bit_length() - 1) // 10)


def format_bytes(count: float | None, unit: int | None = None) -> str:
    """Bytes: `3.91 GiB`, in the unit of the column where one is given."""
    if count is None:
        return NOT_MEASURED
    if unit is None:
        unit = byte_unit_of([int(count)])
    amount = count / 1024**unit
    digits = 0 if unit == 0 or abs(amount) >= 1000 else 1 if abs(amount) >= 100 else 2
    return _signed(f"{amount:.{digits}f} {UNITS[unit]}")


TIME_UNITS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (float("inf"), 1 / 60, "min"))


def time_unit_of(times: list[float | None]) -> tuple[float, str]:
    """(what a second is, name) of the unit that a whole column of times is written in: that of its median."""
    known = sorted(abs(span) for span in times if span)
    middle = known[len(known) // 2] if known else 1.0
    return next((scale, unit) for limit, scale, unit in TIME_UNITS if middle < limit)


def format_scaled(amount: float | None, scale: float = 1.0) -> str:
    """A figure of a column whose head names the unit: two digits after the point, and never a zero that is none."""
    if amount is None:
        return NOT_MEASURED
    shown = amount * scale
    return "< 0.01" if 0 < abs(shown) < 0.005 else _signed(f"{shown:,.2f}").replace(",", " ")


def format_percent(fraction: float | None, digits: int = 1) -> str:
    """A fraction as percentage: `3.4 %`."""
    return NOT_MEASURED if fraction is None else _signed(f"{100 * fraction:.{digits}f} %")


def format_seconds(span: float | None) -> str:
    """A time in the unit that leaves one to three digits before the point."""
    if span is None:
        return NOT_MEASURED
    if span == 0:
        return "0 s"
    scale, unit = time_unit_of([span])
    return _signed(f"{span * scale:.3g} {unit}")


def format_estimate(span: float | None) -> str:
    """A time that is guessed: `50 s`, `12 min`, `3.5 h`."""
    if span is None:
        return NOT_MEASURED
    return f"{span:.0f} s" if span < 90 else f"{span / 60:.0f} min" if span < 5400 else f"{span / 3600:.1f} h"


def format_timestamp(at: str | None) -> str:
    """A time of the wire as an element that scripts may turn into the reader's own zone."""
    if at is None:
        return Markup("—")
    shown = f"{at[:10]} {at[11:16]} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at, shown)


def format_count(count: float | None) -> str:
    """A count with thin spaces between thousands."""
    return NOT_MEASURED if count is None else f"{count:,}".replace(",", "\u202f")


def short_id(id: str) -> str:
    """An id as people recognize it."""
    return escape(id[:12])


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


FILTERS = {
    "size": format_bytes,
    "plain": format_scaled,
    "share": format_percent,
    "seconds": format_seconds,
    "about": format_estimate,
    "moment": format_timestamp,
    "number": format_count,
    "shortened": short_id,
}
