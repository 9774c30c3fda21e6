"""Training steps: loss, training mode, optimizer, chunked loss, random seeds, segment recomputation, devices, roles.

May import graph.analysis, autodiff, builder, errors, ir, ops, transforms and validate.
Start at `step.py`; recomputation of segments starts at `recompute_segments.py`.
"""
