"""Values that are known before anything runs: shape arithmetic and other small calculations on constants.

Shape(x: float32[8,128]) ── Gather(·, 0) ── Concat(·, [64])        all three are known: [8, 64]
"""

from __future__ import annotations

import numpy as np

from graph.errors import CannotExecute
from graph.ir import Effect, TensorType
from graph.ops import known, run
from graph.ops.table import Call

MOST_INTEGERS = 1024  # elements of an integer or bool tensor that is computed ahead
MOST_FLOATS = 64  # shape arithmetic passes through floats (Resize scales); tables and masks stay nodes
#: Ops whose output's length follows from content, bounded by the input's elements.
_BOUNDED = frozenset({"NonZero", "Unique", "Compress"})
#: Ops that draw numbers, in some mode at least.
_DRAWS = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike"})


def is_small(type: TensorType) -> bool:
    """True when a tensor of this type may be computed ahead."""
    return type.elements <= (MOST_FLOATS if type.dtype.startswith(("float", "bfloat", "complex")) else MOST_INTEGERS)


def folded(call: Call, types: tuple[TensorType | None, ...]) -> tuple[np.ndarray | None, ...] | None:
    """Arrays of the call's outputs when they can be known now and are small, else None.

    `types` are the output types inferred. Nothing large is computed to find that it is large.
    """
    if call.op in ("Shape", "Size"):
        return _of_type(call)
    record = known(call.op)
    if (
        "::" in call.op
        or call.op in _DRAWS
        or (record is not None and record.effect is not Effect.PURE)
        or not call.inputs
    ):
        return None
    for i, type in enumerate(call.inputs):
        if type is not None and (call.constant(i) is None or not is_small(type)):
            return None
    if all(type is None for type in call.inputs):
        return None
    for type, wanted in zip(types, call.wanted, strict=False):
        if wanted and (not is_small(type) if type is not None else call.op not in _BOUNDED):
            return None
    try:
        with np.errstate(all="ignore"):
            return run(call, *(call.constants[i] if t is not None else None for i, t in enumerate(call.inputs)))
    except (CannotExecute, ArithmeticError, ValueError, TypeError, IndexError):
        return None  # the node stays, and runs when the graph does


def _of_type(call: Call) -> tuple[np.ndarray | None, ...] | None:
    """Shape and Size need the type of their input only."""
    type = call.inputs[0] if call.inputs else None
    if type is None:
        return None
    if call.op == "Size":
        return (np.array(type.elements, np.int64),)
    rank = len(type.shape)
    start, end = _within(call.attribute("start", 0), rank), _within(call.attribute("end", rank), rank)
    return (np.array(type.shape[start:end], np.int64),)


def _within(place: int, rank: int) -> int:
    return min(max(place + rank if place < 0 else place, 0), rank)
