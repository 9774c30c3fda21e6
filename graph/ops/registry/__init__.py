"""The operator registry: types, kernels, costs, aliasing and effects by operator name.

    record = find_op("Conv")         # None for an unregistered operator, which can still be planned
    types = infer(call)              # output types
    arrays = run(call, *inputs)      # numpy kernel, else `onnx.reference`

A family registers its operators by decorating their kernels; standard operators without a kernel here are
listed with `register_standard(...)`. `FAMILIES` names the families, imported at the first look-up.
May import ir and errors. Start at `registry.py`.
"""

from __future__ import annotations

from graph.ops.registry.dispatch import infer, run, work
from graph.ops.registry.registry import CHEAP, HEAVY, NEVER, Call, Op, Work, all_ops, find_op, op, register_standard

__all__ = [
    "CHEAP",
    "HEAVY",
    "NEVER",
    "Call",
    "Op",
    "Work",
    "all_ops",
    "find_op",
    "infer",
    "op",
    "register_standard",
    "run",
    "work",
]
