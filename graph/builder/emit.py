"""Helper to write subgraphs as formulas: gradient rules, and decompositions of remat ops into standard ops.

def sigmoid_grad(emit, node, dz):            # a rule reads like the formula
    (y,) = node.outputs
    return (emit.mul(dz, emit.mul(y, emit.sub(emit.scalar_like(1, y), y))),)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graph.builder.builder import Builder
from graph.ir import ABSENT, NARROW_FLOATS, Phase, TensorType, Val
from graph.ops.registry.onnx_fallback import numpy_dtype, onnx_dtype


class Emit:
    """Adds nodes to a builder with one name prefix and phase."""

    def __init__(
        self,
        builder: Builder,
        prefix: str,
        phase: Phase = Phase.BACKWARD,
        constants: dict[Any, Val] | None = None,
        zeros_made: set[int] | None = None,
        **node_fields: Any,
    ):
        self.builder, self.prefix, self.phase = builder, prefix, phase
        self.constants = {} if constants is None else constants  # cache, by type and content
        self.zeros_made = set() if zeros_made is None else zeros_made  # ids of values made by `zeros`
        self.node_fields = node_fields  # fields of every new node, e.g. annotations

    def val(self, v: int) -> Val:
        """Typed handle of value `v`. Raises ValueError if it has no type."""
        type = self.builder.values[v].type
        if type is None:
            raise ValueError(f"value {self.builder.values[v].name} has no type")
        return Val(v, type)

    def known(self, x: Val | None) -> np.ndarray | None:
        """Content of a constant, None if unknown."""
        return None if x is None else self.builder.values[x.id].data

    def op(self, op: str, *inputs: Val | None, outputs: int | Sequence[bool] = 1, **attributes: Any) -> Any:
        """Output of a new node, or a tuple of them when `outputs` is not 1. Attributes that are None are omitted.

        `outputs` is their number, or per output whether it is used; unused ones are returned as None.
        """
        slots: int | list[str | int | None]
        if isinstance(outputs, int):
            slots = outputs
        else:
            slots = [f"{self.prefix}:{i}" if is_used else None for i, is_used in enumerate(outputs)]
        ids = self.builder.node(
            op,
            [ABSENT if x is None else x.id for x in inputs],
            name=self.prefix,
            outputs=slots,
            attributes={k: v for k, v in attributes.items() if v is not None},
            phase=self.phase,
            **self.node_fields,
        )
        vals = tuple(None if v == ABSENT else self.val(v) for v in ids)
        return vals[0] if outputs == 1 else vals

    def op_of_type(self, op: str, inputs: Sequence[Val], type: TensorType) -> Val:
        """Output of a new node whose type cannot be inferred: the lengths are computed, `type` is an upper bound."""
        (v,) = self.builder.node(
            op, [x.id for x in inputs], name=self.prefix, types=[type], phase=self.phase, **self.node_fields
        )
        return self.val(v)

    def constant(self, data: Any, dtype: str | None = None) -> Val:
        """A constant; `dtype` is an ONNX name. Equal constants are created once per `constants` cache."""
        array = np.asarray(data) if dtype is None else np.asarray(data).astype(numpy_dtype(dtype))
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = self.val(self.builder.constant(array, f"{self.prefix}/constant"))
        return self.constants[key]

    def ints(self, values: Iterable[int]) -> Val:
        """int64 vector constant, for shapes and axes."""
        return self.constant(np.asarray(list(values), np.int64))

    def scalar_like(self, number: float, like: Val) -> Val:
        return self.constant(number, like.dtype)

    def zeros(self, type: TensorType) -> Val:
        """A tensor of zeros, expanded by a node so that its lifetime is short."""
        fill = np.zeros(1, numpy_dtype(type.dtype))
        zeros = self.expand(self.constant(fill.reshape(())), type.shape)
        self.zeros_made.add(zeros.id)
        return zeros

    def ones(self, type: TensorType) -> Val:
        return self.expand(self.constant(1, type.dtype), type.shape)

    def add(self, x: Val, y: Val) -> Val:
        return self.op("Add", x, y)  # type: ignore[no-any-return]

    def sub(self, x: Val, y: Val) -> Val:
        return self.op("Sub", x, y)  # type: ignore[no-any-return]

    def mul(self, x: Val, y: Val) -> Val:
        a, b = self.known(x), self.known(y)
        if a is not None and b is not None and a.size == b.size == 1:
            return self.constant(a * b, x.dtype)
        return self.op("Mul", x, y)  # type: ignore[no-any-return]

    def div(self, x: Val, y: Val) -> Val:
        return self.op("Div", x, y)  # type: ignore[no-any-return]

    def div_by(self, x: Val, count: float) -> Val:
        """`x / count`, rounded once: in float32 where the dtype of `x` does not represent `count`."""
        known = self.known(x)
        if known is not None and known.size == 1:
            return self.constant(known.astype(np.float64) / count, x.dtype)
        with np.errstate(over="ignore"):
            exact = np.asarray(count).astype(numpy_dtype(x.dtype)).astype(np.float64) == count
        wide = "float32" if x.dtype in NARROW_FLOATS and not exact else x.dtype
        return self.cast(self.div(self.cast(x, wide), self.constant(count, wide)), x.dtype)

    def neg(self, x: Val) -> Val:
        return self.op("Neg", x)  # type: ignore[no-any-return]

    def matmul(self, x: Val, y: Val) -> Val:
        return self.op("MatMul", x, y)  # type: ignore[no-any-return]

    def cast(self, x: Val, dtype: str) -> Val:
        """`x` converted to `dtype`; `x` itself if it has that dtype."""
        return x if x.dtype == dtype else self.op("Cast", x, to=onnx_dtype(dtype))

    def where(self, condition: Val, x: Val, y: Val) -> Val:
        return self.op("Where", condition, x, y)  # type: ignore[no-any-return]

    def transpose(self, x: Val, perm: Sequence[int]) -> Val:
        return x if list(perm) == list(range(x.rank)) else self.op("Transpose", x, perm=list(perm))

    def reshape(self, x: Val, shape: Sequence[int]) -> Val:
        """`x` with another shape (a view); every length is explicit and 0 means length 0."""
        data = self.known(x)
        if data is not None and data.size == 1:
            return self.constant(data.reshape(tuple(shape)))
        if tuple(shape) == x.shape:
            return x
        zeros = {"allowzero": 1} if self.builder.opset.get("", 21) >= 14 or 0 in shape else {}
        return self.op("Reshape", x, self.ints(shape), **zeros)  # type: ignore[no-any-return]

    def expand(self, x: Val, shape: Sequence[int]) -> Val:
        return x if tuple(shape) == x.shape else self.op("Expand", x, self.ints(shape))

    def expand_like(self, x: Val, like: Val, bounded: bool) -> Val:
        """`x` broadcast to the shape of `like`, whose lengths are known at run time only if it is `bounded`."""
        if not bounded:
            return self.expand(x, like.shape)
        return self.op_of_type("Expand", [x, self.op("Shape", like)], like.type)

    def reduce_sum(self, x: Val, axes: Sequence[int], keepdims: bool = True) -> Val:
        return x if not axes else self.op("ReduceSum", x, self.ints(axes), keepdims=int(keepdims))

    def reduce_mean(self, x: Val, axes: Sequence[int], keepdims: bool = True) -> Val:
        return x if not axes else self.op("ReduceMean", x, self.ints(axes), keepdims=int(keepdims))

    def sum_to(self, x: Val, like: Val | Sequence[int]) -> Val:
        """`x` summed over the axes that were broadcast from the shape `like`; lengths are not written out."""
        shape = like.shape if isinstance(like, Val) else tuple(like)
        if x.shape == shape:
            return x
        lead = x.rank - len(shape)
        lost = [*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1)]
        axes = [axis for axis in lost if x.shape[axis] != 1]
        if axes == list(range(lead)):
            return self.reduce_sum(x, axes, keepdims=False)
        summed = self.reduce_sum(x, axes)
        return self.op("Squeeze", summed, self.ints(range(lead))) if lead else summed
