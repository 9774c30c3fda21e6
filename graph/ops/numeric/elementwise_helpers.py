"""How elementwise ops enter the table: a formula on arrays, and for our own ops its twin in standard ops.

A formula sees contiguous arrays in the precision computed in (`precision.upcast`; integers as they
are) and never writes to them. What the table keeps rounds the result and makes it fresh, so it
depends on shapes and contents alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graph.builder.emit import Emit
from graph.ir import FLOAT_DTYPES, TensorType, Val
from graph.ops.numeric.precision import upcast
from graph.ops.registry.onnx_fallback import dtype_name, numpy_dtype
from graph.ops.registry.registry import Call, Kernel, OutputInputPairs, Work, WorkRule, op

#: formula(call, *arrays) -> array
Formula = Callable[..., np.ndarray]

FIRST_INPUT: OutputInputPairs = ((0, 0),)
EITHER_INPUT: OutputInputPairs = ((0, 0), (0, 1))
ANY_INPUT: OutputInputPairs = tuple((0, i) for i in range(16))  # of ops with any number of inputs

# Flops of one element of functions that take more than one operation, in the order of a vector library's cost.
TRANSCENDENTAL = 10


def pointwise(
    name: str,
    formula: Formula,
    *,
    takeover: OutputInputPairs = FIRST_INPUT,
    flops: int = 1,
    saves: tuple[str, ...] = (),
    result: str | None = None,
) -> None:
    """Register a standard elementwise op; `result` is the dtype it makes when not its first input's."""
    op(name, work=elementwise_work(flops), takeover=takeover, gradient_reads=saves)(_kernel(formula, result))


def pointwise_gradient(
    name: str,
    formula: Formula,
    body: Callable[..., Val],
    *,
    flops: int = 2,
    takeover: OutputInputPairs = EITHER_INPUT,
    infer: Callable[[Call], tuple[TensorType | None, ...]] | None = None,
) -> None:
    """Register remat::`name`Grad of (dy, x or y, ...): the formula on arrays and `body(emit, call, *vals)`."""
    register = op(
        f"remat::{name}Grad",
        infer=infer or same_as_first,
        work=elementwise_work(flops),
        takeover=takeover,
        body=_one_output(body),
    )
    register(_kernel(formula, None))


def same_as_first(call: Call) -> tuple[TensorType | None, ...]:
    """The first input's type; an array beside it has that very type. Raises ValueError."""
    first = call.inputs[0] if call.inputs else None
    if len(call.inputs) < 2:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes the incoming gradient and what was saved")
    second = call.inputs[1]
    if first is not None and second is not None and first != second:
        raise ValueError(f"input 1 is {second} but input 0, whose gradient it belongs to, is {first}")
    return (first,)


def broadcast(*types: TensorType | None) -> tuple[int, ...] | None:
    """The shape operands broadcast to, None when one is unknown. Raises ValueError."""
    shapes = [t.shape for t in types if t is not None]
    if len(shapes) < len(types):
        return None
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise ValueError("shapes " + " and ".join(map(str, shapes)) + " do not broadcast") from None


def elementwise_work(flops: int) -> WorkRule:
    """So many operations per output element, and no workspace."""

    def work(call: Call) -> Work:
        return Work(flops * sum(t.elements for t in call.outputs if t is not None))

    return work


def as_new_array(result: Any, dtype: np.dtype[Any], *inputs: np.ndarray | None) -> np.ndarray:
    """`result` in `dtype`, contiguous, and never the memory of an input."""
    array = np.asarray(result).astype(dtype, order="C", copy=False)
    if any(x is not None and np.may_share_memory(array, x) for x in inputs):
        return array.copy()
    return array


def as_computable(array: np.ndarray) -> np.ndarray:
    """Narrow floats widened, everything else as it is; contiguous."""
    if array.dtype.kind in "biuc":
        return np.asarray(array, order="C")
    return upcast(array) if dtype_name(array.dtype) in FLOAT_DTYPES else array.astype(np.int8)  # sub-byte integers


def _kernel(formula: Formula, result: str | None) -> Kernel:
    made = None if result is None else numpy_dtype(result)

    def kernel(call: Call, *arrays: np.ndarray | None) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = formula(call, *[None if a is None else as_computable(a) for a in arrays])
            like = next(a for a in arrays if a is not None).dtype if made is None else made
            return as_new_array(found, like, *arrays)

    return kernel


def _one_output(body: Callable[..., Val]) -> Callable[..., tuple[Val | None, ...]]:
    def several(emit: Emit, call: Call, *inputs: Val | None) -> tuple[Val | None, ...]:
        return (body(emit, call, *inputs),)

    return several
