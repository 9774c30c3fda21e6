"""Generation of unique names."""

from __future__ import annotations

from collections.abc import Container


def unique_name(name: str, taken: Container[str], passed: dict[str, int] | None = None) -> str:
    """`name` if it is not in `taken`, else the first free one of `name/1`, `name/2`, ...

    `passed` remembers by name how many of these are taken, for a `taken` that only grows.
    """
    if name not in taken:
        return name
    k = 1 if passed is None else passed.get(name, 0) + 1
    while f"{name}/{k}" in taken:
        k += 1
    if passed is not None:
        passed[name] = k - 1
    return f"{name}/{k}"


def reserve_name(name: str, taken: set[str], mark: str = "") -> str:
    """A free name, added to `taken`: `name` followed by as many `mark` as needed, else `unique_name(name)`."""
    while mark and name in taken:
        name += mark
    free = unique_name(name, taken)
    taken.add(free)
    return free
