"""Gradients of matrix products.

No transposed copy is materialized: a product with a plain matrix is a Gemm with transpose flags over flattened rows,
a batched product is remat::MatMul.
"""

from __future__ import annotations

import math
from typing import Any

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@gradient("MatMul")
def matmul(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Z = X Y: dX = dZ Yᵀ, dY = Xᵀ dZ. A vector is a matrix of one row, or of one column."""
    x, y = node.inputs
    rows = (1, *x.shape) if x.rank == 1 else x.shape
    columns = (*y.shape, 1) if y.rank == 1 else y.shape
    m, k, n = rows[-2], rows[-1], columns[-1]
    stack = tuple(dz.shape[: dz.rank - (x.rank > 1) - (y.rank > 1)])
    dx = dy = None
    if any(node.bounded):
        return _bounded_matmul(emit, node, dz)
    if len(columns) == 2:  # one matrix for all batches
        flat = emit.reshape(dz, (math.prod(stack) * m, n))
        if node.needs[0]:
            dx = emit.reshape(_gemm(emit, flat, emit.reshape(y, columns), transB=1), x.shape)
        if node.needs[1]:
            left = emit.reshape(x, (math.prod(stack) * m, k))
            dy = emit.reshape(_gemm(emit, left, flat, transA=1), y.shape)
        return dx, dy
    dz = emit.reshape(dz, (*stack, m, n))
    if node.needs[0]:
        product = emit.op("remat::MatMul", dz, emit.reshape(y, columns), trans_b=1)
        dx = emit.reshape(emit.sum_to(product, rows), x.shape)
    if node.needs[1]:
        product = emit.op("remat::MatMul", emit.reshape(x, rows), dz, trans_a=1)
        dy = emit.reshape(emit.sum_to(product, columns), y.shape)
    return dx, dy


def _bounded_matmul(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """The rule of MatMul for operands whose lengths are known at run time only: no shape is written out."""
    x, y = node.inputs
    left = x if x.rank > 1 else emit.op("Unsqueeze", x, emit.ints([0]))
    right = y if y.rank > 1 else emit.op("Unsqueeze", y, emit.ints([1]))
    if y.rank == 1:
        dz = emit.op("Unsqueeze", dz, emit.ints([dz.rank]))
    if x.rank == 1:
        dz = emit.op("Unsqueeze", dz, emit.ints([dz.rank - 1]))
    dx = dy = None
    if node.needs[0]:
        dx = emit.sum_to(emit.op("remat::MatMul", dz, right, trans_b=1), left)
        dx = dx if x.rank > 1 else emit.op("Squeeze", dx, emit.ints([0]))
    if node.needs[1]:
        dy = emit.sum_to(emit.op("remat::MatMul", left, dz, trans_a=1), right)
        dy = dy if y.rank > 1 else emit.op("Squeeze", dy, emit.ints([1]))
    return dx, dy


@gradient("remat::MatMul")
def stacked_matmul(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Z = op(A) op(B) with optional transposes; each gradient is a product of the same kind."""
    a, b = node.inputs
    ta, tb = int(node.attribute("trans_a", 0)), int(node.attribute("trans_b", 0))
    da = db = None
    if node.needs[0]:
        product = (
            emit.op("remat::MatMul", b, dz, trans_a=tb, trans_b=1)
            if ta
            else emit.op("remat::MatMul", dz, b, trans_b=1 - tb)
        )
        da = emit.sum_to(product, a)
    if node.needs[1]:
        product = (
            emit.op("remat::MatMul", dz, a, trans_a=1, trans_b=ta)
            if tb
            else emit.op("remat::MatMul", a, dz, trans_a=1 - ta)
        )
        db = emit.sum_to(product, b)
    return da, db


def _gemm(emit: Emit, a: Val, b: Val, **attributes: Any) -> Val:
    """A' B' without C, which is optional from opset 11 on."""
    nothing = () if emit.builder.opset.get("", 21) >= 11 else (emit.scalar_like(0, a),)
    return emit.op("Gemm", a, b, *nothing, **attributes)  # type: ignore[no-any-return]


@gradient("Gemm")
def gemm(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Y = alpha A' B' + beta C, where ' is an optional transpose."""
    a, b, c = node.inputs[0], node.inputs[1], node.input(2)
    ta, tb = int(node.attribute("transA", 0)), int(node.attribute("transB", 0))
    alpha = float(node.attribute("alpha", 1.0))
    da = db = dc = None
    if node.needs[0]:
        da = (
            _gemm(emit, b, dz, transA=tb, transB=1, alpha=alpha)
            if ta
            else _gemm(emit, dz, b, transB=1 - tb, alpha=alpha)
        )
    if node.needs[1]:
        db = (
            _gemm(emit, dz, a, transA=1, transB=ta, alpha=alpha)
            if tb
            else _gemm(emit, a, dz, transA=1 - ta, alpha=alpha)
        )
    if node.needed(2):
        beta = float(node.attribute("beta", 1.0))
        dc = emit.sum_to(dz, c)
        if beta != 1:
            dc = emit.mul(dc, emit.scalar_like(beta, dc))
    return (da, db, dc)[: len(node.inputs)]


@gradient("Einsum")
def einsum(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Per operand the same contraction with dz in its place; an index of that operand alone is broadcast."""
    terms, result = _terms(node)
    gradients: list[Val | None] = []
    for i, (x, needed) in enumerate(zip(node.inputs, node.needs, strict=True)):
        if not needed:
            gradients.append(None)
            continue
        others = [j for j in range(len(terms)) if j != i]
        reachable = {*result, *(letter for j in others for letter in terms[j])}
        kept = "".join(letter for letter in terms[i] if letter in reachable)
        equation = ",".join([result, *(terms[j] for j in others)]) + "->" + kept
        found = emit.op("Einsum", dz, *(node.inputs[j] for j in others), equation=equation)
        alone = [axis for axis, letter in enumerate(terms[i]) if letter not in reachable]
        if alone:
            found = emit.expand(
                emit.reshape(found, [1 if axis in alone else n for axis, n in enumerate(x.shape)]), x.shape
            )
        gradients.append(found)
    return tuple(gradients)


def _terms(node: ForwardNode) -> tuple[list[str], str]:
    """Index letters of each operand and of the result. Raises CannotDifferentiate for ellipses and diagonals."""
    equation = node.attribute("equation", "")
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise CannotDifferentiate(f"equation {equation!r}", "write the indices explicitly, each once per operand")
    if not arrow:
        letters = "".join(terms)
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return terms, result
