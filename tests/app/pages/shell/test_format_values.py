"""Formatted quantities of pages."""

from __future__ import annotations

from app.pages.shell.format_values import format_column_bytes, format_column_seconds


def test_small_amounts_of_a_column_keep_their_digits_in_a_unit_of_their_own() -> None:
    gib, ms = 3, 1e3
    assert [format_column_bytes(n, gib) for n in (8 << 30, 1 << 29, 160 << 10, 0)] == [
        "8.00",
        "0.50",
        "160.0 KiB",
        "0.00",
    ]
    assert [format_column_seconds(t, ms) for t in (0.35091, 2.4e-4, 42.4e-6, 0.0)] == [
        "350.91",
        "0.24",
        "42.4 µs",
        "0.00",
    ]
    assert format_column_bytes(None, gib) == format_column_seconds(None, ms)
