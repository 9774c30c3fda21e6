"""A graph whose 16- and 32-bit floats are float64, to run the same function with more digits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.ir import ABSENT, Body, Graph, Node, TensorType, Value
from graph.ops.registry.onnx_fallback import dtype_name, onnx_dtype

WIDE = "float64"
_NARROW = frozenset(("float16", "bfloat16", "float32"))
_NARROW_NUMBERS = frozenset(map(onnx_dtype, _NARROW))
#: Attributes that hold the number of an element type.
_DTYPE_ATTRIBUTES = frozenset(("dtype", "output_datatype", "output_dtype", "softmax_precision", "stash_type", "to"))
_FLOAT32 = onnx_dtype("float32")
#: Op -> attribute that states the element type of its output, and its content where the node has none.
_DEFAULTS: Mapping[str, tuple[str, Any]] = {
    "ConstantOfShape": ("value", np.zeros(1, np.float32)),
    **dict.fromkeys(("RandomNormal", "RandomUniform"), ("dtype", _FLOAT32)),
    **dict.fromkeys(
        ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"), ("output_datatype", _FLOAT32)
    ),
}


def in_float64(graph: Graph) -> Graph:
    """The graph in float64: types, contents and attributes, nested graphs included. Random streams stay as they are.

    Unread outputs of nodes without bodies are left out: statistics may keep their type.
    """
    kept = {*graph.outputs, *(v for node in graph.nodes for v in node.reads)}
    return replace(
        graph,
        values=tuple(_wide_value(value) for value in graph.values),
        nodes=tuple(_wide_node(node, kept) for node in graph.nodes),
    )


def _wide_value(value: Value) -> Value:
    type, data = value.type, value.data
    if type is None or type.dtype not in _NARROW:
        return value
    wide = None if data is None else data.astype(np.float64)
    return replace(value, type=TensorType(WIDE, type.shape), data=wide)


def _wide_node(node: Node, kept: Collection[int]) -> Node:
    outputs = node.outputs
    if not node.bodies:
        outputs = tuple(v if v in kept else ABSENT for v in outputs)
    bodies = {key: Body(in_float64(body.graph), body.captures) for key, body in node.bodies.items()}
    given = dict([_DEFAULTS[node.op]] if node.op in _DEFAULTS else []) | dict(node.attributes)
    attributes = MappingProxyType({name: _wide_attribute(name, x) for name, x in given.items()})
    return replace(node, outputs=outputs, attributes=attributes, bodies=MappingProxyType(bodies))


def _wide_attribute(name: str, content: Any) -> Any:
    if name in _DTYPE_ATTRIBUTES and isinstance(content, int) and content in _NARROW_NUMBERS:
        return onnx_dtype(WIDE)
    if isinstance(content, np.ndarray) and dtype_name(content.dtype) in _NARROW:
        return content.astype(np.float64)
    return content
