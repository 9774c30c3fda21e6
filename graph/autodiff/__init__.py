"""Reverse-mode differentiation: `Graph` -> the graph followed by its backward pass.

May import graph.analysis, builder, cancellation, errors, ir, ops.control_flow, ops.registry and transforms.
Start at `differentiate.py`, then `reverse_pass.py`; the rules of single ops are in `gradients/rules/`.
"""
