"""Rules of ops that move elements: shapes, slices, gathers, scatters, resizing.

May import `gradients.registry`. Start at `shape.py`.
"""
