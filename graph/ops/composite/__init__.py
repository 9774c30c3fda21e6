"""Ops that are defined by their decomposition: attention, rotary embeddings, fused ops of onnxruntime.

May import ir, builder, ops.registry, ops.numeric and ops.nn. Start at `attention.py`.
"""
