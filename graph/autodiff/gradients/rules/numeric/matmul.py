"""Gradients of matrix products.

No transposed copy is materialized: a product with a plain matrix is a Gemm with transpose flags over flattened rows,
a batched product is remat::MatMul.
"""

from __future__ import annotations

import math
import string
from typing import Any

import numpy as np

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.contraction import contracted, index_terms
from graph.builder.emit import Emit
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
    """Per operand the same contraction with dz in its place.

    An index that only this operand has is broadcast; one of length 1 that others stretch is summed; a repeated
    index (a diagonal) gets a letter per axis, tied by an identity matrix.
    """
    terms, result = index_terms(node.attribute("equation", ""), [x.rank for x in node.inputs])
    gradients: list[Val | None] = []
    for i, (x, needed) in enumerate(zip(node.inputs, node.needs, strict=True)):
        if not needed:
            gradients.append(None)
            continue
        names, operands = [result], [dz]
        for j, (term, y) in enumerate(zip(terms, node.inputs, strict=True)):
            if j != i:
                names.append(term)
                operands.append(y)
        kept = ""
        for axis, letter in enumerate(terms[i]):
            if letter in kept:
                kept += next(c for c in string.ascii_letters if c not in "".join([*terms, *names, result, kept]))
                names.append(letter + kept[-1])
                operands.append(emit.constant(np.eye(x.shape[axis]), dz.dtype))
            else:
                kept += letter
        lengths: dict[str, int] = {}  # of each index over all these operands
        for term, y in zip(names, operands, strict=True):
            lengths |= {letter: n for letter, n in zip(term, y.shape, strict=True) if n != 1 or letter not in lengths}
        shape = dict(zip(kept, x.shape, strict=True))
        out = "".join(c for c in kept if c in lengths and (shape[c] != 1 or lengths[c] == 1))
        found = contracted(emit, names, operands, out)
        found = emit.reshape(found, [lengths[c] if c in out else 1 for c in kept])
        gradients.append(emit.expand(found, x.shape))
    return tuple(gradients)


@gradient("Det")
def determinant(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """dx = dz times the cofactors: signed determinants of the minors, which exist for singular matrices too."""
    (x,) = node.inputs
    n, lead = x.shape[-1], x.rank - 2
    others = np.array([[k for k in range(n) if k != i] for i in range(n)], np.int64).reshape(n, n - 1)
    signs = emit.constant((-1.0) ** np.add.outer(np.arange(n), np.arange(n)), dz.dtype)
    if n == 1:
        return (emit.reshape(dz, x.shape),)
    rows = emit.op("Gather", x, emit.constant(others), axis=lead)  # [..., n, n-1, n]
    minors = emit.op("Gather", rows, emit.constant(others), axis=lead + 2)  # [..., n, n-1, n, n-1]
    minors = emit.transpose(minors, [*range(lead), lead, lead + 2, lead + 1, lead + 3])
    return (emit.mul(emit.reshape(dz, (*dz.shape, 1, 1)), emit.mul(emit.op("Det", minors), signs)),)
