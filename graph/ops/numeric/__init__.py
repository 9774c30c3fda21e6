"""Numeric operators and their gradients: elementwise, matrix products, reductions; precision rules.

May import ir, builder and ops.registry. Start at `precision.py`, then `elementwise_helpers.py`.
"""
