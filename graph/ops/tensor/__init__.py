"""Operators that move elements: shapes, gathers, resizing, copies, gradient markers.

May import ir, builder, ops.registry and ops.numeric. Start at `shape.py`.
"""
