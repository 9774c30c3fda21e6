"""Bytes as reported and bytes of the planner: what is excluded, and what is reserved."""

from __future__ import annotations

from dataclasses import dataclass

from planner.lowering.lowered_graph import LoweredGraph


@dataclass(frozen=True, slots=True)
class MemoryAccounting:
    """Byte accounting: bytes excluded from every step, and bytes added as a reserve."""

    counts: str  # "everything" or "activations"
    excluded_bytes: int  # resident bytes, if only activations count
    reserve_bytes: int

    @classmethod
    def of(cls, lowered: LoweredGraph, counts: str, reserve_bytes: int) -> MemoryAccounting:
        return cls(counts, lowered.resident_bytes if counts == "activations" else 0, reserve_bytes)

    def counted(self, held_bytes: int) -> int:
        """Reported bytes for `held_bytes` of the planner."""
        return held_bytes - self.excluded_bytes + self.reserve_bytes

    def held(self, counted_bytes: int) -> int:
        """Planner bytes for reported bytes; the inverse of `counted`."""
        return counted_bytes + self.excluded_bytes - self.reserve_bytes
