"""Entry point of the ONNX reader: `load`, and the model state shared by all parts of the walk."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from types import MappingProxyType

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from onnx.defs import onnx_opset_version

from graph.builder.builder import Builder
from graph.errors import BadGraph, quoted
from graph.formats.document.max_lengths import MaxLengths
from graph.formats.onnx.guards.guards import unguarded
from graph.formats.onnx.read.batch_rebinding import BatchRebinding
from graph.formats.onnx.read.input_shapes import bind_shapes, declared_type
from graph.formats.onnx.read.metadata import ModelNote, ValueNote, decode_note
from graph.formats.onnx.read.node_walk import NodeWalk
from graph.formats.onnx.read.opset_upgrade import TARGET_OPSET, opset_of
from graph.formats.onnx.read.protos import array_of, checked, is_external, note_of, op_name, type_of
from graph.formats.onnx.read.restore import with_value_ids
from graph.formats.onnx.read.scope import GraphFrame, Scope
from graph.formats.onnx.read.structure import StructureChecker
from graph.formats.onnx.read.wire import parse
from graph.formats.onnx.roles import TensorRoles
from graph.ir import FLOAT_DTYPES, IMPORT_WARNINGS, Graph, Role, TensorType
from graph.limits import Limits, ShapeOverrides


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """Graph of an ONNX model, with static shapes and ops of opset 21 or newer. Raises BadGraph."""
    model = parse(data)
    StructureChecker(model, limits).check()
    return OnnxModel(unguarded(model), limits, shapes).graph()


class OnnxModel:
    """A parsed model, the requested shapes, and the roles and contents of its tensors."""

    def __init__(self, proto: ModelProto, limits: Limits, shapes: ShapeOverrides):
        self.proto, self.limits, self.shapes = proto, limits, shapes
        self.roles = TensorRoles(proto, shapes)
        self.constant_bytes = 0
        self.max_lengths = MaxLengths(shapes.max)
        self.functions = {(op_name(f.domain, f.name), f.overload): f for f in proto.functions}
        self.node_names = {node.name for node in proto.graph.node}
        versions = [opset_of(part.opset_import) for part in (proto, *proto.functions)]
        self.opset = min(max(TARGET_OPSET, *versions), onnx_opset_version())
        self.is_ours = note_of(proto) is not None  # written by remat, with notes
        self.notes = self._value_notes() if self.is_ours else {}
        inputs = _inputs_without_content(proto.graph)
        #: Parameters, constants and states that a file written by remat lists as inputs.
        self.resident = [
            v for v in inputs if self.notes.get(v.name, ValueNote()).role not in (Role.ACTIVATION, Role.INPUT)
        ]
        self.inputs, self.lengths = bind_shapes([v for v in inputs if v not in self.resident], shapes)
        self.batch = BatchRebinding(proto, self.inputs)
        graphs = list(_graphs(proto.graph)) if self.is_ours else [proto.graph]
        self.declared = {v.name: v for graph in graphs for v in (*graph.value_info, *graph.output)}

    def graph(self) -> Graph:
        """Walk the model and return its graph. Raises BadGraph."""
        source = self.proto.graph
        opsets = {op.domain: op.version for op in self.proto.opset_import if op.domain not in ("", "ai.onnx")}
        builder = Builder(source.name, {"": self.opset, **opsets})
        scope = Scope(GraphFrame(builder), opset_of(self.proto.opset_import), is_model=True)
        for item in self.inputs:
            value_note = self.notes.get(item.name, ValueNote())
            slot = scope.define(item.name, item.type, role=Role.INPUT, note=value_note)
            scope.frame.id_of(slot)
        for proto in self.resident:
            self._resident(proto, scope)
        walk = NodeWalk(self)
        copies = {} if self.is_ours else self.roles.tied(_content_of)
        self.hold(source, scope, "graph", copies)
        for copy, name in copies.items():
            walk.transpose(name, copy, scope)
        walk.nodes(source.node, scope, "graph")
        note = decode_note(note_of(self.proto) or "{}", ModelNote, "model") if self.is_ours else ModelNote()
        ends = len(source.output) - note.added_outputs
        outputs = [walk.output(proto.name, scope) for proto in source.output[: max(0, ends)]]
        self.max_lengths.check()
        if not self.is_ours:
            parameters = {value.name for value in builder.values if value.role is Role.PARAMETER}
            annotations = self.roles.annotations(parameters, _content_of)
            if self.max_lengths.warnings:
                annotations[IMPORT_WARNINGS] = self.max_lengths.warnings
            builder.annotations = MappingProxyType(annotations)
            return builder.build(outputs)
        builder.order_is_given = note.order_is_given
        builder.annotations = MappingProxyType(note.annotations)
        builder.gradient_rules = note.gradient_rules
        builder.gradients = [(walk.value_id(p, scope), walk.value_id(g, scope)) for p, g in note.gradients]
        return with_value_ids(builder.build(outputs), note.value_ids)

    def hold(self, graph: GraphProto, scope: Scope, path: str, leave: Container[str] = ()) -> None:
        """Define the initialisers of a graph, except those in `leave`."""
        for i, tensor in enumerate(graph.initializer):
            if tensor.name in leave:
                continue
            place = f"{path}.initializer[{i}]"
            self.tensor(tensor.name, type_of(tensor, place), tensor, scope, place)
        for i, sparse in enumerate(graph.sparse_initializer):
            place = f"{path}.sparse_initializer[{i}]"
            header = TensorProto(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
            self.tensor(sparse.values.name, type_of(header, place), None, scope, place)

    def tensor(self, name: str, type: TensorType, proto: TensorProto | None, scope: Scope, path: str) -> None:
        """Define one tensor of the file as parameter or constant, with its content where shapes may depend on it."""
        stored = proto is not None and not is_external(proto) and _has_content(proto, type, path)
        note = self.notes.get(name, ValueNote())
        decode = type.dtype not in FLOAT_DTYPES or type.elements <= 64 or self.roles.needs_content(name, type)
        content = array_of(proto, path) if stored and decode and proto is not None else None
        role = note.role
        if role is Role.ACTIVATION:
            role = self.roles.role_of(name, type, content)
        if (
            role is Role.CONSTANT
            and stored
            and content is None
            and proto is not None
            and not self.roles.is_frozen(name)
        ):
            content = array_of(proto, path)
        self.keep(name, type, content, role, scope, note)

    def keep(
        self, name: str, type: TensorType, content: np.ndarray | None, role: Role, scope: Scope, note: ValueNote
    ) -> None:
        """Define a tensor; content is kept for constants and our states, up to `limits.constant_bytes` in total."""
        keeps = role is Role.CONSTANT or (role is Role.STATE and self.is_ours)
        if not keeps or self.constant_bytes + type.nbytes > self.limits.constant_bytes:
            content = None
        self.constant_bytes += type.nbytes if content is not None else 0
        slot = scope.define(name, type, role=role, data=content, is_held=True, is_baked=True, note=note)
        if name in self.notes:
            scope.frame.id_of(slot)  # round trips keep unread values too
        while content is None and slot.frame.outer is not None:
            slot.frame = slot.frame.outer  # nested graphs capture their weights

    def declared_type(self, name: str, in_model: bool) -> TensorType | None:
        """Type declared in the file for a value; None where undeclared or invalid under the requested shapes.

        Names may repeat in nested graphs and functions, except in files written by `remat`.
        """
        proto = self.declared.get(name) if in_model or self.is_ours else None
        if proto is None or self.notes.get(name, ValueNote()).untyped or not _is_tensor(proto):
            return None
        dtype, lengths = declared_type(proto.type, name, f"value_info[{name}]")
        shape = None if lengths is None else self._bound_shape(lengths)
        return None if shape is None else checked(TensorType(dtype, shape), quoted(name), "value_info")

    def _bound_shape(self, lengths: Sequence[int | str | None]) -> tuple[int, ...] | None:
        """Declared lengths with symbols replaced; None with an unbound symbol, or when declared for other shapes."""
        if (self.batch.is_changed or self.shapes.inputs) and all(isinstance(n, int) for n in lengths):
            return None
        bound = [n if isinstance(n, int) else self.lengths.get(n or "") for n in lengths]
        known = tuple(n for n in bound if n is not None)
        return known if len(known) == len(bound) else None

    def formal(self, proto: ValueInfoProto, path: str) -> TensorType:
        """Type of a formal input in a file written by `remat`. Raises BadGraph unless static."""
        dtype, lengths = declared_type(proto.type, proto.name, path)
        shape = tuple(n for n in lengths or () if isinstance(n, int))
        if lengths is None or len(shape) != len(lengths):
            raise BadGraph.one(
                "bad_note",
                path,
                f"{quoted(proto.name)} without a static shape",
                "numbers only",
                "export the graph again",
            )
        return checked(TensorType(dtype, shape), quoted(proto.name), path)

    def _resident(self, proto: ValueInfoProto, scope: Scope) -> None:
        """Define a parameter, constant or state that a file written by `remat` lists among its inputs."""
        note = self.notes[proto.name]
        type = self.formal(proto, "graph.input")
        slot = scope.define(proto.name, type, role=note.role, note=note)
        scope.frame.id_of(slot)

    def _value_notes(self) -> dict[str, ValueNote]:
        graphs = _graphs(self.proto.graph)
        protos = [p for g in graphs for p in (*g.input, *g.initializer, *g.value_info, *g.output)]
        found = ((p.name, note_of(p)) for p in protos)
        return {name: decode_note(text, ValueNote, quoted(name)) for name, text in found if text is not None}


def _inputs_without_content(graph: GraphProto) -> list[ValueInfoProto]:
    """Inputs of the graph that are not initialisers."""
    initializers = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return [v for v in graph.input if v.name not in initializers]


def _content_of(tensor: TensorProto) -> np.ndarray | None:
    """Content of an initialiser; None when the file does not have it."""
    path = f"initializer {quoted(tensor.name)}"
    stored = not is_external(tensor) and _has_content(tensor, type_of(tensor, path), path)
    return array_of(tensor, path) if stored else None


def _is_tensor(proto: ValueInfoProto) -> bool:
    """True for a declared tensor with an element type."""
    return proto.type.WhichOneof("value") == "tensor_type" and bool(proto.type.tensor_type.elem_type)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every nested one."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _has_content(tensor: TensorProto, type: TensorType, path: str) -> bool:
    """False for a tensor stripped of its content. Raises BadGraph when the content has another size than the type."""
    stored = len(tensor.raw_data)
    if stored in (0, type.nbytes):
        typed = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
        return bool(stored) or not type.elements or any(len(field) for field in typed)
    raise BadGraph.one(
        "bad_tensor",
        path,
        f"tensor {quoted(tensor.name)} of {type} with {stored} raw bytes",
        f"{type.nbytes:,} bytes, or none",
        "send the whole tensor",
    )
