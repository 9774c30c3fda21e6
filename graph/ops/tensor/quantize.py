"""Quantization: types and kernels by the standard, costs, and the mask of the straight-through estimator."""

from __future__ import annotations

from graph.builder.emit import Emit
from graph.ir import TensorType, Val
from graph.ops.numeric.by_body import kernel_of
from graph.ops.numeric.elementwise_helpers import elementwise_work
from graph.ops.numeric.precision import statistics_dtype
from graph.ops.registry.registry import Call, op, register_standard

register_standard("QuantizeLinear", work=elementwise_work(4), gradient_reads=("i0", "i1", "i2"))
register_standard("DequantizeLinear", work=elementwise_work(2), gradient_reads=("i0", "i1", "i2"))
register_standard("DynamicQuantizeLinear", work=elementwise_work(6))


def _gradient_type(call: Call) -> tuple[TensorType | None, ...]:
    if not 3 <= len(call.inputs) <= 4:
        raise ValueError(f"{call.op} takes dy, x, the scale and an optional zero point")
    return (call.inputs[1],)


def _gradient(e: Emit, call: Call, dy: Val, x: Val, scale: Val, zero_point: Val | None = None) -> tuple[Val, ...]:
    """dy / scale where x / scale + zero point lies between `low` and `high`, else 0; `rounded` for integers."""
    wide = statistics_dtype(x.dtype)
    step = e.cast(scale, wide)
    level = e.div(e.cast(x, wide), step)
    if call.attribute("rounded", 1):
        level = e.op("Round", level)
    if zero_point is not None:
        level = e.add(level, e.cast(zero_point, wide))
    low, high = (e.scalar_like(call.attributes[name], level) for name in ("low", "high"))
    inside = e.op("And", e.op("GreaterOrEqual", level, low), e.op("LessOrEqual", level, high))
    dx = e.where(inside, e.div(e.cast(dy, wide), step), e.scalar_like(0, level))
    return (e.cast(dx, x.dtype),)


op("remat::QuantizeLinearGrad", infer=_gradient_type, work=elementwise_work(6), takeover=((0, 0),), body=_gradient)(
    kernel_of(_gradient)
)
