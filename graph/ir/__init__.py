"""The model as frozen records: values, nodes, graphs, and their names and numbering.

Imports nothing but numpy and `graph.errors`. Start at `records.py`.
"""

from __future__ import annotations

from graph.ir.records import (
    ABSENT,
    DTYPE_BITS,
    EMPTY,
    FETCH,
    FLOAT_DTYPES,
    FROZEN,
    IMPORT_WARNINGS,
    MAX_BYTES,
    NARROW_FLOATS,
    OFFLOAD,
    OPERAND_OF,
    UNKNOWN_COST,
    Body,
    Cost,
    Effect,
    Graph,
    Node,
    Phase,
    Role,
    TensorType,
    Val,
    Value,
    consumers,
    producers,
    walk,
)

__all__ = [
    "ABSENT",
    "DTYPE_BITS",
    "EMPTY",
    "FETCH",
    "FLOAT_DTYPES",
    "FROZEN",
    "IMPORT_WARNINGS",
    "MAX_BYTES",
    "NARROW_FLOATS",
    "OFFLOAD",
    "OPERAND_OF",
    "UNKNOWN_COST",
    "Body",
    "Cost",
    "Effect",
    "Graph",
    "Node",
    "Phase",
    "Role",
    "TensorType",
    "Val",
    "Value",
    "consumers",
    "producers",
    "walk",
]
