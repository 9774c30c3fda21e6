"""Facts about nodes: which values share bytes, side effects, cost on a device.

May import ir, ops.registry and ops.control_flow. Start at `aliasing.py`, then `cost.py`.
"""
