"""Writer of ONNX models that other runtimes can execute.

Nodes keep their order. Standard ops are written unchanged; `remat` ops are decomposed into standard ops in place
(`decompose.py`), because onnxruntime moves the nodes of a function call to the end of its list, which loses the planned
order. An op without a body keeps its own domain. Fields without an ONNX equivalent are stored in `metadata_props`
(`graph/formats/onnx/read/metadata.py`), so that reading the file restores the graph.

Repeats that lower the peak (`repeats.py`) are guarded (`guards/guards.py`), so that onnxruntime's optimizers neither
merge them with their first run nor run them early.

What overwrites a parameter or a state is an output of the file, since ONNX has no writes in place, and is an input
itself: its content, if any, is the default of the input.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from graph.errors import BadGraph, quoted
from graph.execution.sample_inputs import sample_arrays
from graph.formats.onnx.decompose import flattened
from graph.formats.onnx.guards.guards import guard
from graph.formats.onnx.read.metadata import (
    METADATA_KEY,
    Expansion,
    ModelNote,
    NodeNote,
    ValueNote,
    encode_note,
    node_note,
    packed_attributes,
    value_note,
)
from graph.formats.onnx.repeats import repeats_pay
from graph.formats.onnx.updates import updates
from graph.ir import ABSENT, Body, Graph, Node, Role, TensorType, Value
from graph.ir.names import reserve_name
from graph.loop_remat.to_standard_ops import lower_to_standard_ops
from graph.ops.registry.onnx_fallback import attribute_proto, onnx_dtype, schema_of
from graph.transforms.inline_calls import without_calls

_MAX_BYTES = 2**31 - 1  # bytes; limit of a protobuf message
_MIN_IR_VERSION = 10  # first IR version with metadata_props on nodes
#: Ops with a `seed` attribute: all nodes of a stream get one seed, so recomputation repeats the random draw.
_RANDOM_OPS = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def dump(graph: Graph, *, weights: str = "inputs", seed: int = 0) -> bytes:
    """The graph as the bytes of a ModelProto.

    Parameters, states and constants without content are graph inputs; with `weights="random"` parameters and
    constants are initialisers drawn with `seed`. Raises BadGraph for a file over 2 GiB, and for a node with bodies
    without a standard form; ValueError for an unknown `weights`.
    """
    if weights not in ("inputs", "random"):
        raise ValueError(f"weights is {weights!r}; use 'inputs' or 'random'")
    content: Mapping[int, np.ndarray] = {}
    if weights == "random":
        _check_size(sum(v.nbytes for v in graph.values if v.role in (Role.PARAMETER, Role.CONSTANT)))
        content = {v: a for v, a in sample_arrays(graph, seed).items() if graph.values[v].role is not Role.STATE}
    is_guarded = repeats_pay(graph)
    graph = without_calls(lower_to_standard_ops(graph))
    file = _File({value.name for value in graph.values}, graph.opset.get("", 21))
    model = ModelProto(producer_name="remat")
    writer = _GraphWriter(file, graph, [value.name for value in graph.values], content)
    writer.write(model.graph)
    if is_guarded:
        guard(model.graph, writer.repeated, file.value_names)
    opsets = {"": file.opset, **{d: v for d, v in graph.opset.items() if d}}
    for domain in sorted(file.domains):
        opsets.setdefault(domain, 1)
    model.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    standard = [helper.make_opsetid("", file.opset)]
    model.ir_version = max(_MIN_IR_VERSION, helper.find_min_ir_version_for(standard, ignore_unknown=True))
    names = writer.names
    gradients = tuple((names[a], names[b]) for a, b in graph.gradients)
    note = ModelNote(
        graph.order_is_given,
        gradients,
        dict(graph.annotations),
        dict(graph.gradient_rules),
        writer.value_ids(),
        tuple((names[before], names[after]) for before, after in writer.updates.items()),
        len(writer.added_outputs),
    )
    _annotate(model, note)
    _check_size(model.ByteSize())
    data: bytes = model.SerializeToString()
    return data


@dataclass(slots=True)
class _File:
    """State shared by the graphs of one file."""

    value_names: set[str]
    opset: int
    domains: set[str] = field(default_factory=set)  # non-standard domains in use
    node_names: set[str] = field(default_factory=set)

    def free(self, name: str) -> str:
        """A value name, reserved: `name`, or `name/1`, ... when taken."""
        return reserve_name(name, self.value_names)


@dataclass(frozen=True, slots=True)
class _OnnxNode:
    """One node of the file."""

    op: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]


class _GraphWriter:
    """Writes one graph of the file."""

    def __init__(self, file: _File, graph: Graph, names: list[str], content: Mapping[int, np.ndarray] | None):
        self.file, self.graph, self.names = file, graph, names
        self.content, self.is_nested = content or {}, content is None  # random content: top level only
        self.shared: dict[Any, str] = {}  # content of a constant in a decomposed op -> its initialiser
        self.proto = GraphProto()
        self.defined: list[int] = []  # values in the order the file defines them
        self.updates = {} if self.is_nested else updates(graph)
        self.added_outputs = [v for v in self.updates.values() if v not in graph.outputs]
        self.repeated: list[bool] = []  # of each node of the file: whether it is a recomputation

    def write(self, proto: GraphProto, captured: frozenset[int] = frozenset()) -> None:
        """Fill `proto` with the graph; captured values belong to the graph around it."""
        self.proto = proto
        graph = self.graph
        proto.name = graph.name or "graph"
        self.file.node_names.update(node.name for node in graph.nodes)
        written = {v for node in graph.nodes for v in node.writes}
        proto.input.extend(self._value_info(v) for v in graph.inputs)
        given = written.union(graph.inputs, captured)
        initializers: list[int] = []
        extra_inputs: list[int] = []
        for v in range(len(graph.values)):
            if v not in given:
                (initializers if self._resident(v) else extra_inputs).append(v)
        self.defined = [*graph.inputs, *extra_inputs, *initializers, *(v for node in graph.nodes for v in node.writes)]
        for node in graph.nodes:
            self._node(node)
        outputs = [*graph.outputs, *self.added_outputs]
        proto.value_info.extend(self._value_info(v) for v in sorted(written.difference(outputs)))
        proto.output.extend(self._value_info(v) for v in outputs)
        if self.is_nested:
            self._compute_outputs(written)

    def _compute_outputs(self, written: set[int]) -> None:
        """Copy outputs of a nested graph that no node writes or that repeat: ONNX requires a distinct writer each."""
        seen: set[int] = set()
        for info, v in zip(self.proto.output, self.graph.outputs, strict=True):
            if v not in written or v in seen:
                copy = self.file.free(f"{info.name}/out")
                self.proto.node.append(NodeProto(op_type="Identity", input=[info.name], output=[copy]))
                info.name = copy
            seen.add(v)

    def value_ids(self) -> tuple[int, ...]:
        """Value ids in the order of their definition in the file; () when that is 0, 1, 2, ..."""
        return () if self.defined == list(range(len(self.defined))) else tuple(self.defined)

    def _resident(self, v: int) -> bool:
        """Write a parameter, constant or state: True as an initialiser (content known or drawn), False as an input."""
        value = self.graph.values[v]
        array = self.content.get(v) if value.data is None else value.data
        if array is None:
            self.proto.input.append(self._value_info(v))
            return False
        tensor = numpy_helper.from_array(np.asarray(array), self.names[v])
        _annotate(tensor, value_note(value))
        if v in self.updates:
            self.proto.input.append(self._value_info(v))
        self.proto.initializer.append(tensor)
        return True

    def _value_info(self, v: int) -> ValueInfoProto:
        """ValueInfo of a value with its note; a value of known size only is written as uint8[size]."""
        value = self.graph.values[v]
        type = value.type or TensorType("uint8", (value.nbytes,))
        info = helper.make_tensor_value_info(self.names[v], onnx_dtype(type.dtype), type.shape)
        note = value_note(value)
        if note not in (ValueNote(), ValueNote(Role.INPUT)):
            _annotate(info, note)
        return info

    def _node(self, node: Node) -> None:
        """Write a node as one or several nodes of the file; the first carries its note."""
        note = node_note(self.graph, node)
        note.after = tuple(self.graph.nodes[n].name for n in node.after)
        names = dict(enumerate(self.names))
        parts = [
            _OnnxNode(part.op, _named(part.inputs, known), _named(part.outputs, known), part.attributes)
            for part, known in flattened(self.graph, node, names, self._within)
        ]
        first = parts[0]
        if len(parts) > 1 or first.op != node.op:
            note.expands = Expansion(
                node.name,
                node.op,
                _named(node.inputs, names),
                _named(node.outputs, names),
                tuple(part.op for part in parts),
                packed_attributes(node.attributes),
            )
        elif node.stream is not None and node.op in _RANDOM_OPS and "seed" not in node.attributes:
            note.seeded = True
            parts = [
                _OnnxNode(node.op, first.inputs, first.outputs, {**node.attributes, "seed": _seed_of(node.stream)})
            ]
        elif node.bodies and "" in first.outputs:  # onnxruntime refuses a Scan with an unnamed output
            note.unused = tuple(i for i, output in enumerate(first.outputs) if not output)
            named = [output or self.file.free(f"{node.name}/unused") for output in first.outputs]
            parts = [_OnnxNode(node.op, first.inputs, named, node.attributes)]
        self.repeated += [node.annotations.get("origin", ("", 0))[1] > 0] * len(parts)
        for k, part in enumerate(parts):
            name = node.name if k == 0 else reserve_name(f"{node.name}/{part.op}", self.file.node_names)
            proto = self._proto(part, name)
            self.proto.node.append(proto)
            if k == 0:
                _annotate(self.proto.node[-1], note)
        for name, body in node.bodies.items():
            self._body(self.proto.node[-1], node, name, body)

    def _within(self, _: str, value: Value) -> str:
        """Name of a value within a decomposed node."""
        return self._shared(value) if value.data is not None else self.file.free(value.name)

    def _shared(self, value: Value) -> str:
        """Name of an initialiser with a constant's content; equal contents share one initialiser per graph."""
        array = np.asarray(value.data)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.shared:
            self.shared[key] = self.file.free(value.name)
            self.proto.initializer.append(numpy_helper.from_array(array, self.shared[key]))
        return self.shared[key]

    def _proto(self, node: _OnnxNode, name: str) -> NodeProto:
        domain, _, op = node.op.rpartition("::")
        if domain:
            self.file.domains.add(domain)
        proto = NodeProto(name=name, op_type=op, domain=domain, input=node.inputs, output=node.outputs)
        schema = schema_of(node.op, self.file.opset)
        for key, value in node.attributes.items():
            kind = schema.attributes[key].type if schema is not None and key in schema.attributes else None
            proto.attribute.append(attribute_proto(key, value, kind))
        return proto

    def _body(self, proto: NodeProto, node: Node, name: str, body: Body) -> None:
        """Append a nested graph as an attribute; captured values keep their names outside."""
        captured = {inner: self.names[outer] for inner, outer in body.captures}
        names = [captured.get(v) or self.file.free(value.name) for v, value in enumerate(body.graph.values)]
        for v, value in enumerate(body.graph.values):
            resident = value.role not in (Role.ACTIVATION, Role.INPUT)
            if resident and value.data is None and v not in captured:
                raise BadGraph.one(
                    "no_content",
                    f"nodes.{node.name}.bodies.{name}",
                    f"{value.role} {quoted(value.name)} without content",
                    "content, or a value captured from outside",
                    "hold the value outside and capture it",
                )
        attribute = proto.attribute.add(name=name, type=5)  # AttributeProto.GRAPH
        _GraphWriter(self.file, body.graph, names, None).write(attribute.g, frozenset(captured))


def _named(ids: Sequence[int], names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple("" if v == ABSENT else names[v] for v in ids)


def _annotate(proto: Any, note: ModelNote | NodeNote | ValueNote) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, encode_note(note)


def _seed_of(stream: str) -> int:
    """Seed of a stream, 24 bits: exact in a float attribute."""
    return zlib.crc32(stream.encode()) & 0xFFFFFF


def _check_size(size: int) -> None:
    if size > _MAX_BYTES:
        raise BadGraph.one(
            "too_large",
            "model",
            f"{size:,} bytes of ONNX",
            f"at most {_MAX_BYTES}, the limit of protobuf",
            "export with weights as inputs, or keep constants out of the graph",
        )
