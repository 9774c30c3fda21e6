"""Rematerialization in loops: what each iteration saves for the backward pass, and what it recomputes.

May import ir, ops.registry, ops.control_flow, validate and errors. Start at `saved_values.py`, then `rewrite.py`.
"""

from __future__ import annotations

from graph.loop_remat.body_pairs import BodyPair, find_pairs, structure_key
from graph.loop_remat.joint_body import JointGraph, joint_graphs
from graph.loop_remat.rewrite import SavePolicy, SnapshotPolicy, TailPolicy
from graph.loop_remat.saved_values import (
    apply_save_policies,
    joint_graphs_under,
    just_in_time_backward,
    with_save_policies,
    with_saved_values,
)

__all__ = [
    "BodyPair",
    "JointGraph",
    "SavePolicy",
    "SnapshotPolicy",
    "TailPolicy",
    "apply_save_policies",
    "find_pairs",
    "joint_graphs",
    "joint_graphs_under",
    "just_in_time_backward",
    "structure_key",
    "with_save_policies",
    "with_saved_values",
]
