"""Constant folding of shape arithmetic and other small computations.

Shape(x: float32[8,128]) ── Gather(·, 0) ── Concat(·, [64])        all three are folded: [8, 64]
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graph.errors import CannotExecute
from graph.ir import TensorType
from graph.ops.registry import infer, run
from graph.ops.registry.dtypes import numpy_dtype
from graph.ops.registry.registry import Call

MAX_INTEGER_ELEMENTS = 1024  # largest integer or bool tensor that is folded
MAX_FLOAT_ELEMENTS = 64  # largest float tensor: Resize scales, but no tables or masks
#: Ops whose output length depends on data, bounded by the input's elements.
_BOUNDED = frozenset({"NonZero", "Unique", "Compress"})
#: Foldable ops. Their time and memory are linear in inputs and outputs; those of others (Conv with padding,
#: LRN, Einsum, RoiAlign) are unbounded even for small inputs and outputs.
_FOLDED = _BOUNDED | {
    "Abs",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Clip",
    "Concat",
    "ConstantOfShape",
    "Cos",
    "CumSum",
    "Div",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "EyeLike",
    "Flatten",
    "Floor",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gemm",
    "Greater",
    "GreaterOrEqual",
    "Identity",
    "IsInf",
    "IsNaN",
    "Less",
    "LessOrEqual",
    "Log",
    "MatMul",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "OneHot",
    "Or",
    "Pow",
    "Range",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Reshape",
    "Round",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Shape",
    "Sigmoid",
    "Sign",
    "Sin",
    "Size",
    "Slice",
    "Softmax",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "Tanh",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unsqueeze",
    "Where",
    "Xor",
}
#: Exceptions of kernels on unexpected data.
_REFUSALS = (CannotExecute, ArithmeticError, ValueError, TypeError, LookupError, AttributeError, MemoryError)


def is_small(type: TensorType) -> bool:
    """True if a tensor of this type is small enough to be folded."""
    limit = MAX_FLOAT_ELEMENTS if type.dtype.startswith(("float", "bfloat", "complex")) else MAX_INTEGER_ELEMENTS
    return type.elements <= limit and all(length <= limit for length in type.shape)


def fold_constants(call: Call, types: tuple[TensorType | None, ...]) -> tuple[np.ndarray | None, ...] | None:
    """Arrays of the call's outputs if they are constant and small, else None.

    `types` are the inferred output types, which rule out large outputs before any computation.
    """
    if call.op in ("Shape", "Size"):
        return _of_type(call)
    if call.op not in _FOLDED or not _has_small_constants(call):
        return None
    if any(call.outputs):  # declared types are unverified: infer without them
        types = infer(replace(call, outputs=(None,) * len(call.outputs)))
    used = [type for type, is_used in zip(types, call.used, strict=False) if is_used]
    if not all(call.op in _BOUNDED if type is None else is_small(type) for type in used):
        return None
    known = [t for t in types if t is not None]
    if len(known) == sum(call.used) and not any(t.elements for t in known):
        return tuple(None if t is None else np.zeros(t.shape, numpy_dtype(t.dtype)) for t in types)
    try:
        with np.errstate(all="ignore"):
            return run(call, *(call.constants[i] if t is not None else None for i, t in enumerate(call.inputs)))
    except _REFUSALS:
        return None  # the node is kept and fails at execution, if at all


def _has_small_constants(call: Call) -> bool:
    """True if all inputs, and at least one, are small constants."""
    given = [(i, type) for i, type in enumerate(call.inputs) if type is not None]
    return bool(given) and all(call.constant(i) is not None and is_small(type) for i, type in given)


def _of_type(call: Call) -> tuple[np.ndarray | None, ...] | None:
    """Outputs of Shape and Size, which need only the type of their input."""
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
