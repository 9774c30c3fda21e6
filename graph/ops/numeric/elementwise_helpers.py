"""Registration of elementwise ops: a formula on arrays, and for remat ops a decomposition into standard ops.

A formula gets contiguous arrays in computing precision (`precision.upcast`; integers unchanged) and never
writes to them. The registered kernel rounds the result into a new array, so that it depends only on shapes
and contents.
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
ANY_INPUT: OutputInputPairs = tuple((0, i) for i in range(16))  # for ops with any number of inputs

# Flops per element of functions of more than one operation, by the order of cost in vector libraries.
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
    """Register a standard elementwise op; `result` is its output dtype, None: that of its first input."""
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
    """The first input's type, which a second input must have too. Raises ValueError."""
    first = call.inputs[0] if call.inputs else None
    if len(call.inputs) < 2:
        raise ValueError(f"{call.op} has {len(call.inputs)} inputs; it takes the incoming gradient and saved values")
    second = call.inputs[1]
    if first is not None and second is not None and first != second:
        raise ValueError(f"input 1 is {second} but input 0, whose gradient it belongs to, is {first}")
    return (first,)


def broadcast(*types: TensorType | None) -> tuple[int, ...] | None:
    """The broadcast shape of the operands, None if one is unknown. Raises ValueError."""
    shapes = [t.shape for t in types if t is not None]
    if len(shapes) < len(types):
        return None
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise ValueError("shapes " + " and ".join(map(str, shapes)) + " do not broadcast") from None


def elementwise_work(flops: int) -> WorkRule:
    """Work rule: `flops` per output element, no workspace."""

    def work(call: Call) -> Work:
        return Work(flops * sum(t.elements for t in call.outputs if t is not None))

    return work


def as_new_array(result: Any, dtype: np.dtype[Any], *inputs: np.ndarray | None) -> np.ndarray:
    """A contiguous copy of `result` in `dtype`, never the memory of an input."""
    array = np.asarray(result).astype(dtype, order="C", copy=False)
    if any(x is not None and np.may_share_memory(array, x) for x in inputs):
        return array.copy()
    return array


def as_computable(array: np.ndarray) -> np.ndarray:
    """`array`, contiguous; narrow floats are widened."""
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
