"""Training operators: optimizers, random ops and dropout, running statistics.

May import ir, builder, ops.registry and ops.numeric. Start at `optimizer.py`.
"""
