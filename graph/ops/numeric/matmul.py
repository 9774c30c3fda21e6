"""Matrix products: MatMul, Gemm, Einsum, integer products.

Narrow floats are multiplied in float32. Operands are contiguous, so a product's bits follow from
shapes and contents; integers are multiplied exactly.
"""

from __future__ import annotations

import math

import numpy as np

from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array
from graph.ops.registry.registry import HEAVY, Call, Work, op, register_standard


def _products(call: Call) -> Work:
    """Work: 2·m·n·k flops, where k is the shared length."""
    a, out = call.inputs[0], call.outputs[0]
    if a is None or out is None or not a.shape:
        return Work()
    shared = a.shape[-2] if call.op == "Gemm" and call.attribute("transA", 0) else a.shape[-1]
    return Work(2 * out.elements * shared)


@op("MatMul", work=_products, recompute=HEAVY, gradient_reads=("i0", "i1"))
def matmul(call: Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return as_new_array(product(as_computable(a), as_computable(b)), a.dtype)


@op("Gemm", work=_products, recompute=HEAVY, gradient_reads=("i0", "i1"))
def gemm(call: Call, a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None) -> np.ndarray:
    """alpha · A · B + beta · C, operands transposed by `transA` and `transB`."""
    left = as_computable(a).T if call.attribute("transA", 0) else as_computable(a)
    right = as_computable(b).T if call.attribute("transB", 0) else as_computable(b)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    y = product(left, right)
    if alpha != 1:
        y = y * np.asarray(alpha, np.float64 if y.dtype.kind in "iu" else y.dtype)
    if c is not None:
        y = y + (as_computable(c) if beta == 1 else as_computable(c) * np.asarray(beta, y.dtype))
    return as_new_array(y, a.dtype, a, b, c)


def _contraction(call: Call) -> Work:
    """Work: two flops per combination of indices, one if no index is summed."""
    lengths: dict[str, int] = {}
    terms, _, result = call.attributes["equation"].replace(" ", "").partition("->")
    for term, type in zip(terms.split(","), call.inputs, strict=False):
        named = [c for c in term if c != "."]
        if type is None:
            return Work()
        if "..." in term:
            lead = term.index("...")
            inner = len(type.shape) - len(named)
            lengths["..."] = max(lengths.get("...", 1), math.prod(type.shape[lead : lead + inner]))
            shape = type.shape[:lead] + type.shape[lead + inner :]
        else:
            shape = type.shape
        for c, n in zip(named, shape, strict=True):
            lengths[c] = max(lengths.get(c, 1), n)
    summed = not result or any(c not in result for c in lengths)
    return Work((2 if summed else 1) * math.prod(lengths.values()))


@op("Einsum", work=_contraction, recompute=HEAVY, gradient_reads=("i0",))
def einsum(call: Call, *arrays: np.ndarray) -> np.ndarray:
    wide = [as_computable(array) for array in arrays]
    order = np.einsum_path(call.attributes["equation"], *wide, optimize="greedy")[0] if len(wide) > 1 else False
    return as_new_array(np.einsum(call.attributes["equation"], *wide, optimize=order), arrays[0].dtype, *arrays)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b; stacked matrices times one matrix are one product over all rows."""
    if a.ndim > 2 and b.ndim == 2 and a.size and a.dtype.kind == "f":
        rows = np.ascontiguousarray(a).reshape(-1, a.shape[-1])
        return np.asarray((rows @ b).reshape(*a.shape[:-1], b.shape[-1]))
    return np.asarray(np.matmul(a, b))


register_standard("MatMulInteger", "QLinearMatMul", work=_products, recompute=HEAVY)
