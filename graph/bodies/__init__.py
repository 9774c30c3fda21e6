"""Forward and backward bodies as a pair: which values a trip saves for the way back, and which are made anew."""

from __future__ import annotations

from graph.bodies.joint import Joint, joints_of
from graph.bodies.pairs import Pair, find_pairs, structure_of
from graph.bodies.rewriting import Saving, Snapshots, Tail
from graph.bodies.saving import applied, joints_under, just_in_time, with_saved, with_savings

__all__ = [
    "Joint", "Pair", "Saving", "Snapshots", "Tail", "applied", "find_pairs", "joints_of", "joints_under",
    "just_in_time", "structure_of", "with_saved", "with_savings",
]  # fmt: skip
