"""Names that nothing else has."""

from __future__ import annotations

from collections.abc import Container


def unique_name(name: str, taken: Container[str]) -> str:
    """`name`, or `name/1`, `name/2`, ... while it is taken."""
    candidate, k = name, 0
    while candidate in taken:
        k += 1
        candidate = f"{name}/{k}"
    return candidate


def reserve_name(name: str, taken: set[str], mark: str = "") -> str:
    """As `unique_name`, or with further marks behind it where one is given; taken from now on."""
    while mark and name in taken:
        name += mark
    free = unique_name(name, taken)
    taken.add(free)
    return free
