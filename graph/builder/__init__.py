"""Construction of graphs: `Builder` adds nodes with inferred types, `Emit` writes subgraphs as formulas.

May import ir, ops.registry, ops.control_flow, validate, errors and cancellation. Start at `builder.py`.
"""
