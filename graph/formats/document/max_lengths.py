"""Largest lengths of data-dependent dimensions, and largest trip counts of loops, set by the caller: `--max NAME=N`."""

from __future__ import annotations

from collections.abc import Mapping

from graph.errors import BadGraph, quoted


class MaxLengths:
    """Entries of the request field `max`, those that a reader has applied, and its warnings about them."""

    def __init__(self, given: Mapping[str, int]):
        self.given, self.warnings = given, list[str]()
        self._applied: set[str] = set()

    def find(self, *names: str) -> int | None:
        """The smallest entry under one of the names of a value or loop; None without one."""
        found = [name for name in names if name in self.given]
        self._applied.update(found)
        return min((self.given[name] for name in found), default=None)

    def warn(self, text: str) -> None:
        self.warnings.append(f"{text}, as requested (max); a run that needs more fails")

    def check(self) -> None:
        """Raise BadGraph if an entry applies to nothing in the model."""
        for name in self.given:
            if name not in self._applied:
                raise BadGraph.one(
                    "unknown_value",
                    f"max.{name}",
                    f"{quoted(name)}, which is no output of a NonZero or NonMaxSuppression and no Loop",
                    "a value with a data-dependent length, or a loop",
                    "correct the name, or remove it",
                )
