"""Generation of unique names."""

from __future__ import annotations

from collections.abc import Container


def unique_name(name: str, taken: Container[str]) -> str:
    """`name` if it is not in `taken`, else the first free one of `name/1`, `name/2`, ..."""
    candidate, k = name, 0
    while candidate in taken:
        k += 1
        candidate = f"{name}/{k}"
    return candidate


def reserve_name(name: str, taken: set[str], mark: str = "") -> str:
    """A free name, added to `taken`: `name` followed by as many `mark` as needed, else `unique_name(name)`."""
    while mark and name in taken:
        name += mark
    free = unique_name(name, taken)
    taken.add(free)
    return free
