"""Sharing of buffers among values with disjoint lifetimes, for frameworks with named or numbered buffers.

May import ir, analysis, execution, ops.registry, transforms, formats.document, formats.native and errors.
Start at `sharing.py`.
"""
