"""The model as a whole: what every part of the walk may ask of it, and the graph made of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto
from onnx.defs import onnx_opset_version

from graph.builder.builder import Builder
from graph.errors import BadGraph, quoted
from graph.formats.onnx.read import weights
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
from graph.ir import FLOAT_DTYPES, Graph, Role, TensorType
from graph.limits import Limits, ShapeOverrides


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """The model in the bytes, of static shapes, in ops of opset 21 or newer. Raises BadGraph."""
    model = parse(data)
    StructureChecker(model, limits).check()
    return OnnxModel(model, limits, shapes).graph()


class OnnxModel:
    """A parsed model, the shapes asked for, and what is kept of its tensors."""

    def __init__(self, proto: ModelProto, limits: Limits, shapes: ShapeOverrides):
        self.proto, self.limits, self.shapes = proto, limits, shapes
        self.uses = weights.tensor_uses(proto.graph.node)
        self.signature = weights.signature_of(proto.graph)
        self.constant_bytes = 0
        self.functions = {(op_name(f.domain, f.name), f.overload): f for f in proto.functions}
        self.node_names = {node.name for node in proto.graph.node}
        versions = [opset_of(proto.opset_import), *(opset_of(f.opset_import) for f in proto.functions)]
        self.opset = min(max(TARGET_OPSET, *versions), onnx_opset_version())
        held = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
        self.is_ours = note_of(proto) is not None
        self.notes = self._value_notes() if self.is_ours else {}
        given = [v for v in proto.graph.input if v.name not in held]
        own = [v for v in given if self.notes.get(v.name, ValueNote()).role not in (Role.ACTIVATION, Role.INPUT)]
        self.resident = own  # parameters, constants and states a file of ours lists as inputs
        self.inputs, self.lengths = bind_shapes([v for v in given if v not in own], shapes)
        self.batch = BatchRebinding(proto, self.inputs)
        graphs = list(_graphs(proto.graph)) if self.is_ours else [proto.graph]
        self.declared = {v.name: v for graph in graphs for v in (*graph.value_info, *graph.output)}

    def graph(self) -> Graph:
        """The graph of the whole model."""
        source = self.proto.graph
        opsets = {op.domain: op.version for op in self.proto.opset_import if op.domain not in ("", "ai.onnx")}
        builder = Builder(source.name, {"": self.opset, **opsets})
        scope = Scope(GraphFrame(builder), opset_of(self.proto.opset_import), is_model=True)
        for item in self.inputs:
            note = self.notes.get(item.name, ValueNote())
            slot = scope.define(item.name, item.type, role=Role.INPUT, note=note)
            scope.frame.id_of(slot)
        for proto in self.resident:
            self._resident(proto, scope)
        self.hold(source, scope, "graph")
        walk = NodeWalk(self)
        walk.nodes(source.node, scope, "graph")
        outputs = [walk.output(proto.name, scope) for proto in source.output]
        if not self.is_ours:
            return builder.build(outputs)
        whole = decode_note(note_of(self.proto) or "{}", ModelNote, "model")
        builder.order_is_given = whole.order_is_given
        builder.annotations = MappingProxyType(whole.annotations)
        builder.gradient_rules = whole.gradient_rules
        builder.gradients = [(walk.value_id(p, scope), walk.value_id(g, scope)) for p, g in whole.gradients]
        return with_value_ids(builder.build(outputs), whole.value_ids)

    def hold(self, graph: GraphProto, scope: Scope, path: str) -> None:
        """Define the tensors a graph holds."""
        for i, tensor in enumerate(graph.initializer):
            place = f"{path}.initializer[{i}]"
            self.tensor(tensor.name, type_of(tensor, place), tensor, scope, place)
        for i, sparse in enumerate(graph.sparse_initializer):
            place = f"{path}.sparse_initializer[{i}]"
            header = TensorProto(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
            self.tensor(sparse.values.name, type_of(header, place), None, scope, place)

    def tensor(self, name: str, type: TensorType, proto: TensorProto | None, scope: Scope, path: str) -> None:
        """Define one tensor of the file as parameter or constant, with the content worth keeping."""
        here = proto is not None and not is_external(proto) and _has_content(proto, type, path)
        note = self.notes.get(name, ValueNote())
        readers = {op for op, _ in self.uses.get(name, ())}
        looks_like_mask = len(type.shape) > 1 and readers <= {"Add", "Where", "Sub", "Slice", "Gather"}
        worth = type.dtype not in FLOAT_DTYPES or type.elements <= 64 or looks_like_mask
        content = array_of(proto, path) if here and worth and proto is not None else None
        role = note.role
        if role is Role.ACTIVATION:
            role = weights.role_of(name, type, content, self.uses, self.signature)
        if role is Role.CONSTANT and here and content is None and proto is not None:
            content = array_of(proto, path)
        self.keep(name, type, content, role, scope, note)

    def keep(
        self, name: str, type: TensorType, content: np.ndarray | None, role: Role, scope: Scope, note: ValueNote
    ) -> None:
        """Define a tensor; content of constants is kept up to the limit."""
        if role is not Role.CONSTANT or self.constant_bytes + type.nbytes > self.limits.constant_bytes:
            content = None
        self.constant_bytes += type.nbytes if content is not None else 0
        slot = scope.define(name, type, role=role, data=content, is_held=True, is_baked=True, note=note)
        if name in self.notes:
            scope.frame.id_of(slot)  # a file of ours holds what its graph had, read or not
        while content is None and slot.frame.outer is not None:
            slot.frame = slot.frame.outer  # nested graphs capture their weights

    def declared_type(self, name: str, in_model: bool) -> TensorType | None:
        """What the file says of a value inside it, where that holds for the shapes asked for.

        Names in nested graphs and functions may repeat, except in files of ours.
        """
        proto = self.declared.get(name) if in_model or self.is_ours else None
        if (
            proto is None
            or self.notes.get(name, ValueNote()).untyped
            or proto.type.WhichOneof("value") != "tensor_type"
            or not proto.type.tensor_type.elem_type
        ):
            return None
        dtype, lengths = declared_type(proto.type, name, f"value_info[{name}]")
        if lengths is None:
            return None
        if (self.batch.is_changed or self.shapes.inputs) and all(isinstance(n, int) for n in lengths):
            return None  # it was written down for other shapes
        bound = [n if isinstance(n, int) else self.lengths.get(n or "") for n in lengths]
        if any(n is None for n in bound):
            return None
        return checked(TensorType(dtype, tuple(n for n in bound if n is not None)), quoted(name), "value_info")

    def formal(self, proto: ValueInfoProto, path: str) -> TensorType:
        """Type of an input of a nested graph in a file of ours. Raises BadGraph when it is not static."""
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
        """A parameter, constant or state that a file of ours lists among its inputs."""
        note = self.notes[proto.name]
        type = self.formal(proto, "graph.input")
        slot = scope.define(proto.name, type, role=note.role, note=note)
        scope.frame.id_of(slot)

    def _value_notes(self) -> dict[str, ValueNote]:
        graphs = _graphs(self.proto.graph)
        protos = [p for g in graphs for p in (*g.input, *g.initializer, *g.value_info, *g.output)]
        found = ((p.name, note_of(p)) for p in protos)
        return {name: decode_note(text, ValueNote, quoted(name)) for name, text in found if text is not None}


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every nested one."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _has_content(tensor: TensorProto, type: TensorType, path: str) -> bool:
    """False for a tensor stripped of its content. Raises BadGraph when there is some, but not as much as it says."""
    stored = len(tensor.raw_data)
    if stored in (0, type.nbytes):
        typed = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
        return bool(stored) or not type.elements or any(len(field) for field in typed)
    raise BadGraph.one(
        "bad_tensor",
        path,
        f"tensor {quoted(tensor.name)} of {type} with {stored} raw bytes",
        f"{type.nbytes} bytes, or none",
        "send the whole tensor",
    )
