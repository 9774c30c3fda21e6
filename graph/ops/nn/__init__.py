"""Neural-network operators and their gradients: convolution, pooling, normalization, losses, attention.

May import ir, builder, errors, ops.registry and ops.numeric. Start at `convolution.py`; `windows.py` is shared.
"""
