"""Forward and backward bodies as a pair: which values a trip saves for the way back, and which are made anew."""

from __future__ import annotations

from graph.loop_remat.body_pairs import Pair, find_pairs, structure_of
from graph.loop_remat.joint_body import Joint, joints_of
from graph.loop_remat.rewrite import Saving, Snapshots, Tail
from graph.loop_remat.saved_values import applied, joints_under, just_in_time, with_saved, with_savings

__all__ = [
    "Joint",
    "Pair",
    "Saving",
    "Snapshots",
    "Tail",
    "applied",
    "find_pairs",
    "joints_of",
    "joints_under",
    "just_in_time",
    "structure_of",
    "with_saved",
    "with_savings",
]
