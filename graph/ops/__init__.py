"""The op table: what the project knows about an op beside its name.

    record = known("Conv")           # None for an op nobody knows: still plannable
    types = infer(call)              # output types
    arrays = run(call, *inputs)      # numpy kernel, or `onnx.reference` for a standard op

A family file registers its ops by decorating their kernels; standard ops without a kernel of ours
are listed with `standard(...)`. Importing this package imports every family.
"""

from __future__ import annotations

from graph.ops.table import CHEAP, HEAVY, NEVER, OPS, Call, Op, Work, infer, known, op, run, standard, work

__all__ = ["CHEAP", "HEAVY", "NEVER", "OPS", "Call", "Op", "Work", "infer", "known", "op", "run", "standard", "work"]

from graph.ops import families as _families  # noqa: F401  registers every op
