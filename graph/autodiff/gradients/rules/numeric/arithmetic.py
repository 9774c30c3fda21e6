"""Gradients of arithmetic on two or more operands; `sum_to` undoes broadcasting."""

from __future__ import annotations

from graph.autodiff.gradients.accumulation import is_quantized
from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@gradient("Add")
def add(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return tuple(emit.sum_to(dz, x) if needed else None for x, needed in zip(node.inputs, node.needs, strict=True))


@gradient("Sub")
def sub(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, y = node.inputs
    return (emit.sum_to(dz, x) if node.needs[0] else None, emit.neg(emit.sum_to(dz, y)) if node.needs[1] else None)


@gradient("Mul")
def mul(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    x, y = node.inputs
    return (
        emit.sum_to(emit.mul(dz, y), x) if node.needs[0] else None,
        emit.sum_to(emit.mul(dz, x), y) if node.needs[1] else None,
    )


@gradient("Div")
def div(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """z = x / y: dx = dz / y and dy = -dx z, which does not read x."""
    x, y = node.inputs
    dx = emit.div(dz, y)
    return (
        emit.sum_to(dx, x) if node.needs[0] else None,
        emit.neg(emit.sum_to(emit.mul(dx, node.outputs[0]), y)) if node.needs[1] else None,
    )


@gradient("Pow")
def pow(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """z = x^y: dx = dz y x^(y-1) and dy = dz z log x, zero where x is not positive."""
    x, y = node.inputs
    dx = dy = None
    if node.needs[0]:
        dx = emit.sum_to(emit.op("remat::PowGrad", dz, x, y), x)
    if node.needs[1]:
        dy = emit.cast(emit.sum_to(emit.op("remat::PowExponentGrad", dz, x, node.outputs[0]), y), y.dtype)
    return dx, dy


@gradient("Mod")
def mod(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """z = x - y trunc(x / y): dx = dz, dy = -dz trunc(x / y)."""
    x, y = node.inputs
    dy = None
    if node.needs[1]:
        whole = emit.div(emit.sub(x, node.outputs[0]), y)
        dy = emit.neg(emit.sum_to(emit.mul(dz, whole), y))
    return emit.sum_to(dz, x) if node.needs[0] else None, dy


@gradient("Sum")
def variadic_sum(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return tuple(emit.sum_to(dz, x) if needed else None for x, needed in zip(node.inputs, node.needs, strict=True))


@gradient("Mean")
def variadic_mean(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    share = emit.div_by(dz, len(node.inputs))
    return tuple(emit.sum_to(share, x) if needed else None for x, needed in zip(node.inputs, node.needs, strict=True))


@gradient("Max", "Min")
def variadic_extremum(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The gradient goes to the selected operand; to the first one in a tie."""
    if len(node.inputs) == 1:
        return (dz,)
    (z,) = node.outputs
    zero = emit.scalar_like(0, dz)
    gradients: list[Val | None] = []
    rest = dz
    for i, (x, needed) in enumerate(zip(node.inputs, node.needs, strict=True)):
        if not any(node.needs[i:]):
            gradients.append(None)
            continue
        if i == len(node.inputs) - 1:
            gradients.append(emit.sum_to(rest, x))
            continue
        chosen = emit.op("Equal", x, z)
        gradients.append(emit.sum_to(emit.where(chosen, rest, zero), x) if needed else None)
        if any(node.needs[i + 1 :]):
            rest = emit.where(chosen, zero, rest)
    return tuple(gradients)


@gradient("Where")
def where(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    condition, x, y = node.inputs
    zero = emit.scalar_like(0, dz)
    return (
        None,
        emit.sum_to(emit.where(condition, dz, zero), x) if node.needs[1] else None,
        emit.sum_to(emit.where(condition, zero, dz), y) if node.needs[2] else None,
    )


@gradient("Cast", "CastLike")
def cast(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    if not dz.dtype.startswith(("float16", "float32", "float64", "bfloat16")):
        raise CannotDifferentiate(f"the gradient of a cast to {dz.dtype}", "list its output under `no_gradient`")
    x = node.inputs[0]
    dx = dz if is_quantized(x.type) else emit.cast(dz, x.dtype)
    return (dx, *[None] * (len(node.inputs) - 1))
