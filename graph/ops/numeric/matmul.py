"""Matrix products: MatMul, Gemm, Einsum, integer products.

Narrow floats are multiplied in float32. Operands are contiguous, so a product's bits follow from
shapes and contents; integers are multiplied exactly.
"""

from __future__ import annotations

import math

import numpy as np

from graph.ir import TensorType
from graph.ops.numeric.elementwise_helpers import as_computable, as_new_array
from graph.ops.registry import onnx_fallback
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


def _index_lengths(call: Call) -> tuple[str, dict[str, tuple[int, ...]]] | None:
    """(indices of the result, lengths by index), with "..." as "."; None if a type is missing.

    An operand of length 1 is stretched to the length of the others.
    """
    left, arrow, result = str(call.attribute("equation", "")).replace(" ", "").partition("->")
    lengths: dict[str, tuple[int, ...]] = {}
    for term, type in zip(left.split(","), call.inputs, strict=True):
        if type is None:
            return None
        lead, hidden = term.find("."), len(type.shape) - len(term.replace(".", ""))
        shape = list(type.shape)
        if lead >= 0:
            dots = tuple(shape[lead : lead + hidden])
            shape[lead : lead + hidden] = []
            lengths["."] = tuple(np.broadcast_shapes(lengths.get(".", ()), dots))
        for letter, n in zip(term.replace(".", ""), shape, strict=True):
            if n != 1 or letter not in lengths:
                lengths[letter] = (n,)
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        result = "..." * ("." in lengths) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return result.replace("...", "."), lengths


def _contraction(call: Call) -> Work:
    """Work: two flops per combination of indices, one if no index is summed."""
    found = _index_lengths(call)
    if found is None:
        return Work()
    result, lengths = found
    return Work((2 if set(lengths) - set(result) else 1) * math.prod(n for part in lengths.values() for n in part))


def _contracted_type(call: Call) -> tuple[TensorType | None, ...]:
    """Type by the standard, whose inference does not stretch operands of length 1."""
    types = onnx_fallback.infer(call)
    found = _index_lengths(call)
    if found is None or types[0] is None:
        return types
    result, lengths = found
    return (TensorType(types[0].dtype, tuple(n for letter in result for n in lengths.get(letter, ()))),)


@op("Einsum", infer=_contracted_type, work=_contraction, recompute=HEAVY, gradient_reads=("i0",))
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
