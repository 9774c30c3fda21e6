"""Values of differences between two plans or models as text, in the unit that the name of the value says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import msgspec

from app.render.text import format_bytes, format_percent, format_seconds


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, and not true or false."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_value(name: str, value: object, max_chars: int, seconds: Callable[[float], str] = format_seconds) -> str:
    """The value of the figure or field `name`, cut to `max_chars` characters; `seconds` formats times.

    A place in an order is a node and the number of its earlier runs.

    >>> format_value("baseline peak_bytes", 2048, 60), format_value("overhead", 0.125, 60), format_value("op", None, 60)
    ('2.00 KiB', '12.5%', 'none')
    >>> format_value("order, from step 3 on", ["conv1", 0], 60), format_value("order, from step 3 on", ["conv1", 1], 60)
    ('conv1', 'conv1, run 2')
    """
    if is_number(value) and name.endswith("_bytes"):
        return format_bytes(value)
    if is_number(value) and name.endswith("seconds"):
        return seconds(value)
    if is_number(value) and name.endswith("overhead"):
        return format_percent(value)
    if name.startswith("order, ") and isinstance(value, list | tuple):
        node, earlier = value
        value = f"{node}, run {earlier + 1}" if earlier else node
    text = "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
