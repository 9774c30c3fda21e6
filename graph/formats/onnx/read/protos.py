"""Protos as plain records: nodes, attributes, tensors and their types. External data files are never opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from graph.errors import BadGraph, quoted
from graph.ir import MAX_BYTES, TensorType
from graph.ops.registry.onnx_fallback import dtype_name

_KINDS = AttributeProto.AttributeType
_STANDARD = ("", "ai.onnx")


@dataclass(slots=True)
class RawNode:
    """One node of the file, with the op name used in graphs (`domain::Op`)."""

    op: str
    name: str
    inputs: list[str]  # "" where absent
    outputs: list[str]
    path: str  # "graph.node[41]"
    attributes: dict[str, Any] = field(default_factory=dict)
    bodies: dict[str, GraphProto] = field(default_factory=dict)
    overload: str = ""
    note: str | None = None  # text of the `remat` metadata

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    @property
    def shown(self) -> str:
        return f"{self.op} {quoted(self.name or self.outputs[0] if self.outputs else self.name)}"

    def error(self, code: str, what: str, expected: str, remedy: str) -> BadGraph:
        """Error at this node; `what` follows the name of the node: ", which has nested graphs"."""
        return BadGraph.one(code, self.path, self.shown + what, expected, remedy)


def op_name(domain: str, op_type: str) -> str:
    return op_type if domain in _STANDARD else f"{domain}::{op_type}"


def raw_node(proto: NodeProto, path: str, given: Mapping[str, AttributeProto] | None = None) -> RawNode:
    """The node as a record. `given` holds the attributes of the function call around it, for references to them."""
    raw = RawNode(
        op_name(proto.domain, proto.op_type),
        proto.name,
        list(proto.input),
        list(proto.output),
        path,
        overload=proto.overload,
        note=note_of(proto),
    )
    while raw.inputs and not raw.inputs[-1]:
        raw.inputs.pop()  # trailing absent inputs
    for attribute in proto.attribute:
        actual = attribute
        if attribute.ref_attr_name:
            referenced = (given or {}).get(attribute.ref_attr_name)
            if referenced is None:
                continue  # the call omits the attribute referred to
            actual = referenced
        if actual.type == _KINDS.GRAPH:
            raw.bodies[attribute.name] = actual.g
        else:
            raw.attributes[attribute.name] = attribute_value(actual, f"{path}.attribute[{attribute.name}]")
    return raw


def note_of(proto: Any) -> str | None:
    """Text under the key `remat` in a proto's metadata, or None."""
    return next((entry.value for entry in proto.metadata_props if entry.key == "remat"), None)


def attribute_value(proto: AttributeProto, path: str) -> Any:
    """Attribute as int, float, str, array or list. Raises BadGraph for unsupported kinds."""
    kind = proto.type
    if kind == _KINDS.INT:
        return proto.i
    if kind == _KINDS.FLOAT:
        return proto.f
    if kind == _KINDS.INTS:
        return list(proto.ints)
    if kind == _KINDS.FLOATS:
        return list(proto.floats)
    if kind == _KINDS.STRING:
        return _text(proto.s, path)
    if kind == _KINDS.STRINGS:
        return [_text(s, path) for s in proto.strings]
    if kind == _KINDS.TENSOR:
        return array_of(proto.t, path)
    name = _KINDS.Name(kind) if kind in _KINDS.values() else str(kind)
    raise BadGraph.one(
        "bad_attribute",
        path,
        f"an attribute of kind {name}",
        "int, float, string, tensor, a list of the first three, or a graph",
        "export the model without this op",
    )


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadGraph.one(
            "bad_attribute", path, f"bytes that are not UTF-8: {data[:16]!r}", "UTF-8 text", "correct the attribute"
        ) from None


def type_of(proto: TensorProto, path: str) -> TensorType:
    """Type of a tensor, from its header alone. Raises BadGraph."""
    try:
        dtype = dtype_name(proto.data_type)
    except ValueError as error:
        raise BadGraph.one(
            "unknown_dtype",
            path,
            f"tensor {quoted(proto.name)}: {error}",
            "a tensor of numbers",
            "remove the string or undefined tensors from the model",
        ) from None
    return checked(TensorType(dtype, tuple(proto.dims)), f"tensor {quoted(proto.name)}", path)


def checked(type: TensorType, name: str, path: str) -> TensorType:
    """`type`, validated. Raises BadGraph for negative lengths and sizes past 2^63 - 1 bytes."""
    if any(length < 0 for length in type.shape):
        raise BadGraph.one(
            "negative_size",
            path,
            f"{name} of shape {list(type.shape)}",
            "lengths of 0 or more",
            "correct the shape, or give it with --input",
        )
    if type.nbytes > MAX_BYTES:
        raise BadGraph.one(
            "size_too_large",
            path,
            f"{name} of {type}, {type.nbytes:,} bytes",
            f"at most {MAX_BYTES} (2^63 - 1)",
            "correct the shape",
        )
    return type


def is_external(proto: TensorProto) -> bool:
    return proto.data_location == TensorProto.EXTERNAL


def array_of(proto: TensorProto, path: str) -> np.ndarray:
    """Content of a tensor stored in the file. Raises BadGraph for external or damaged data."""
    type = type_of(proto, path)
    if is_external(proto):
        raise BadGraph.one(
            "external_data",
            path,
            f"tensor {quoted(proto.name)}, stored in an external data file",
            "content inside the model where shapes depend on it",
            "save the model with this tensor inside",
        )
    try:
        array = np.asarray(numpy_helper.to_array(proto))
        if array.shape != type.shape:
            raise ValueError(f"content of shape {array.shape}")
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise BadGraph.one(
            "bad_tensor",
            path,
            f"tensor {quoted(proto.name)} of {type} with {len(proto.raw_data)} raw bytes: {error}",
            f"{type.nbytes:,} bytes of content",
            "send the whole tensor",
        ) from None
    return array
