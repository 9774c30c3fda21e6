"""Bytes that onnxruntime holds beside inputs and outputs of a node: those of its decomposition, and of its kernels.

Measured as growth of resident memory around sessions of one node, onnxruntime 1.31 on a CPU, by the options of
`remat.ort`. Kernels that are not listed take none, or less than a megabyte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from graph.analysis.aliasing import last_uses, storage_roots
from graph.analysis.cost import workspace_of
from graph.formats.onnx.decompose import decomposed
from graph.formats.onnx.einsum_workspace import einsum_workspace
from graph.ir import ABSENT, Graph, Node, Role, TensorType

Types = Sequence[TensorType | None]
_MATRIX = 2  # axes
_PAIR = 2  # operands; a contraction of more is decomposed, unless a type is unknown
_VARIADIC = 3  # inputs from which on a kernel adds up in a second tensor
_FLOAT_BYTES, _OFFSET_BYTES, _PARAMETER_BYTES = 4, 8, 88


def runtime_workspace(graph: Graph, node: Node, dying: Collection[int] = ()) -> int:
    """Bytes that onnxruntime holds at once during a node, inputs and outputs excluded.

    `dying` are inputs that nothing reads later: within a decomposition they are freed after their last use.
    """
    body = decomposed(graph, node)
    if body is None:
        return max(_kernel_workspace(graph, node), workspace_of(graph, node))
    roots = storage_roots(body)
    outputs = {roots[v] for v in body.outputs}
    given = dict(zip(body.inputs, (v for v in node.inputs if v != ABSENT), strict=True))
    freed = {inner for inner, v in given.items() if v in dying}
    size = {
        v: value.nbytes
        for v, value in enumerate(body.values)
        if roots[v] == v
        and (v in freed or value.role is Role.ACTIVATION)
        and (value.type is not None or value.bytes is not None)
    }
    last = last_uses(roots, ((*part.reads, *part.writes) for part in body.nodes))
    live = highest = sum(size[v] for v in freed)
    for n, part in enumerate(body.nodes):
        live += sum(size.get(v, 0) for v in part.writes)
        ends = {v for v, end in last.items() if end == n and v in size and v not in outputs}
        highest = max(highest, live + runtime_workspace(body, part, ends))
        live -= sum(size[v] for v in ends)
    return max(0, highest - sum(size.get(v, 0) for v in outputs | freed))


def _kernel_workspace(graph: Graph, node: Node) -> int:
    rule = _KERNELS.get(node.op)
    inputs, outputs = graph.types_of(node.inputs), graph.types_of(node.outputs)
    if rule is None or not outputs or outputs[0] is None or any(type is None for type in inputs[:2]):
        return 0
    return rule(node, inputs, outputs[0])


def _selections(node: Node, inputs: Types, output: TensorType) -> int:
    """Where: the selection of each operand, before they are merged."""
    return 2 * output.nbytes


def _transposed(node: Node, inputs: Types, output: TensorType) -> int:
    """Softmax over an axis that is not the last: operand and result with that axis last."""
    axis = int(node.attributes.get("axis", -1))
    return 0 if axis in (-1, len(output.shape) - 1) else 2 * output.nbytes


def _second_total(node: Node, inputs: Types, output: TensorType) -> int:
    return output.nbytes if len(inputs) >= _VARIADIC else 0


def _offsets(node: Node, inputs: Types, output: TensorType) -> int:
    """ScatterElements: the indices, checked and counted from the start."""
    return 0 if inputs[1] is None else inputs[1].elements * _OFFSET_BYTES


def _contraction(node: Node, inputs: Types, output: TensorType) -> int:
    known = [type for type in inputs if type is not None]
    return einsum_workspace(node.attributes["equation"], known, output) if len(known) <= _PAIR else 0


def _product_parameters(node: Node, inputs: Types, output: TensorType) -> int:
    """MatMul: addresses, strides and offsets of each product of a stack; with a plain matrix on the right it is one."""
    right = inputs[1]
    assert right is not None
    return _PARAMETER_BYTES * math.prod(output.shape[:-2]) if len(right.shape) > _MATRIX else 0


def _columns(node: Node, inputs: Types, output: TensorType) -> int:
    """Conv: the columns of one image where filters outnumber its positions (MlasConvAlgorithmExpandThenGemm)."""
    weight = inputs[1]
    assert weight is not None
    filters, positions = weight.shape[0] // int(node.attributes.get("group", 1)), math.prod(output.shape[2:])
    return math.prod(weight.shape[1:]) * positions * _FLOAT_BYTES if filters > positions else 0


def _columns_of_input(node: Node, inputs: Types, output: TensorType) -> int:
    """ConvTranspose: the columns of one image."""
    x, weight = inputs[:2]
    assert x is not None and weight is not None
    return math.prod(weight.shape[1:]) * math.prod(x.shape[2:]) * _FLOAT_BYTES


_KERNELS: dict[str, Callable[[Node, Types, TensorType], int]] = {
    "Conv": _columns,
    "ConvTranspose": _columns_of_input,
    "Einsum": _contraction,
    "LogSoftmax": _transposed,
    "MatMul": _product_parameters,
    "Max": _second_total,
    "Mean": _second_total,
    "Min": _second_total,
    "ScatterElements": _offsets,
    "Softmax": _transposed,
    "Sum": _second_total,
    "Where": _selections,
}
