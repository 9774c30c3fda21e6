"""Walk over the nodes of the file in order: each is folded, inlined or added to the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, helper

from graph.errors import BadGraph, quoted
from graph.formats.onnx.read import control_flow, sequences
from graph.formats.onnx.read.faults import arity_error, conflict_error, sequence_error, untyped_error
from graph.formats.onnx.read.metadata import NodeNote, ValueNote, node_fields
from graph.formats.onnx.read.opset_upgrade import check_old, is_old, opset_of, upgrade
from graph.formats.onnx.read.protos import RawNode, checked, raw_node
from graph.formats.onnx.read.restore import restore_node
from graph.formats.onnx.read.scope import Scope, Slot
from graph.formats.onnx.read.upgrade_context import NodeUpgradeContext
from graph.ir import ABSENT, EMPTY, FLOAT_DTYPES, Body, Role, TensorType
from graph.ir.names import unique_name
from graph.ops.control_flow.interface import MAX_LENGTH
from graph.ops.registry import infer
from graph.ops.registry.constant_folding import fold_constants
from graph.ops.registry.onnx_fallback import onnx_dtype, type_of_array
from graph.ops.registry.onnx_schemas import check_present, schema_of
from graph.ops.registry.onnx_shapes import check_shapes
from graph.ops.registry.registry import Call

if TYPE_CHECKING:
    from graph.formats.onnx.read.reader import OnnxModel

#: Standard ops that are read as the nodes of their definition: it loops, which no body in the op table does.
INLINED = frozenset({"LinearAttention"})
#: Ops with a data-dependent length that the caller may bound.
BOUNDED = frozenset({"NonZero", "NonMaxSuppression"})
#: Suffix of the shape of a weight stripped from the file, in the light models of the `onnx` package.
_STRIPPED = "__SHAPE"


class NodeWalk:
    """Adds the nodes of one model to its graph."""

    def __init__(self, model: OnnxModel):
        self.model = model
        self.steps = 0
        self.calls: list[str] = []  # stack of functions being inlined

    def nodes(self, protos: Sequence[NodeProto], scope: Scope, path: str) -> None:
        """Walk a list of nodes."""
        n = 0
        while n < len(protos):
            raw = raw_node(protos[n], f"{path}.node[{n}]", scope.given)
            if raw.note is None:
                self._step(raw, protos[n], scope)
                n += 1
            else:
                original, note, parts = restore_node(raw, protos, n)
                self._restored(original, note, scope)
                n += parts

    def _step(self, raw: RawNode, proto: NodeProto, scope: Scope) -> None:
        self.steps += 1
        if self.steps > self.model.limits.nodes:
            raise BadGraph.one(
                "too_many_nodes",
                raw.path,
                f"more than {self.model.limits.nodes} nodes once functions are inlined",
                f"at most {self.model.limits.nodes}",
                "send a smaller model, or raise the limit",
            )
        function = self.model.functions.get((raw.op, raw.overload)) or self._standard_function(raw, proto, scope)
        if function is not None:
            self._call(raw, proto, function, scope)
            return
        if is_old(raw.op, scope.opset):
            check_old(proto, scope.opset, raw)
            for node in upgrade(raw, scope.opset, NodeUpgradeContext(raw, scope)):
                self.fold_or_make(node, scope)
        else:
            self.fold_or_make(raw, scope)

    def _standard_function(self, raw: RawNode, proto: NodeProto, scope: Scope) -> FunctionProto | None:
        """The standard's definition of an op in `INLINED`; None for any other, and for inputs it does not define."""
        schema = schema_of(raw.op, scope.opset) if raw.op in INLINED else None
        if schema is None:
            return None
        slots = self.inputs(raw, scope)
        types = [None if slot is None else slot.type for slot in slots]
        try:
            check_shapes(self._call_of(raw, slots, scope))
        except ValueError as error:
            raise conflict_error(raw, slots, str(error)) from None
        protos = [
            TypeProto() if type is None else helper.make_tensor_type_proto(onnx_dtype(type.dtype), type.shape)
            for type in types
        ]
        text = schema.get_context_dependent_function(proto.SerializeToString(), [p.SerializeToString() for p in protos])
        return FunctionProto.FromString(text) if text else None

    def fold_or_make(self, raw: RawNode, scope: Scope) -> None:
        """Fold the node to constants, or add it to the graph."""
        if raw.op == "Constant":
            self._constant(raw, scope)
            return
        slots = self.inputs(raw, scope)
        if raw.op in sequences.OPS:
            sequences.read_sequence_op(self, raw, slots, scope)
            return
        if raw.op == "Identity" and slots and sequences.is_sequence(slots[0]):
            scope.slots[raw.outputs[0]] = slots[0]
            return
        if raw.bodies:
            control_flow.control_flow(self, raw, slots, scope)
            return
        if any(map(sequences.is_sequence, slots)):
            raise sequence_error(raw.shown, raw.path)
        if raw.op == "CastLike" and len(slots) == 2 and slots[1] is not None and slots[1].type is not None:
            to = onnx_dtype(slots[1].type.dtype)  # the type alone is read
            raw, slots = (
                replace(raw, op="Cast", inputs=raw.inputs[:1], attributes={**raw.attributes, "to": to}),
                slots[:1],
            )
        if raw.op == "Reshape" and len(slots) == 2:
            slots = self._rebind_batch(raw, slots, scope)
        call, most = self._bounded(raw, self._call_of(raw, slots, scope), scope)
        types = self._types(raw, call, slots)
        if self._is_weight(raw, slots, types):
            self.model.keep(raw.outputs[0], _known(types[0]), None, Role.PARAMETER, scope, ValueNote())
            return
        arrays = None if raw.name in self.model.shapes.nodes else fold_constants(call, types)
        if arrays is None and most is not None:
            self.make(raw, slots, types, scope, fields={"annotations": {MAX_LENGTH: most}})
            named = quoted(scope.value_name(raw.outputs[0]))
            self.model.max_lengths.warn(f"{named} of {raw.op} is planned with a length of {most}")
            return
        is_short = any(slot is not None and slot.is_short for slot in slots)
        if arrays is None or is_short:
            self.make(raw, slots, types, scope)
            for name, array in zip(raw.outputs, arrays or (), strict=False):
                if name and (slot := scope.find(name)) is not None:
                    slot.upper = array
            return
        baked = raw.op not in ("Shape", "Size") and all(s is None or s.is_baked for s in slots)
        for name, array in zip(raw.outputs, arrays, strict=False):
            if name and array is not None:
                scope.define(name, type_of_array(array), role=Role.CONSTANT, data=array, is_baked=baked)

    def make(
        self,
        raw: RawNode,
        slots: Sequence[Slot | None],
        types: Sequence[TensorType | None],
        scope: Scope,
        nested: dict[str, Body] | None = None,
        fields: dict[str, Any] | None = None,
    ) -> None:
        """Add the node to the graph of the scope."""
        frame = scope.frame
        types = [*types, *[None] * len(raw.outputs)][: len(raw.outputs)]
        for name, type in zip(raw.outputs, types, strict=True):
            if name and type is None and not self.model.notes.get(name, ValueNote()).untyped:
                flag = f"--max {scope.value_name(name)}=N" if raw.op in BOUNDED else ""
                raise untyped_error(raw, name, self.model.opset, flag)
            if type is not None:
                checked(type, f"output {quoted(name)} of {raw.shown}", raw.path)
        ids = [ABSENT if slot is None else frame.id_of(slot) for slot in slots]
        outputs: list[str | int | None] = []
        for name, type in zip(raw.outputs, types, strict=True):
            if not name:
                outputs.append(None)
                continue
            slot = scope.define(name, type, note=self.model.notes.get(name, ValueNote()))
            slot.value = frame.declare(slot)
            outputs.append(slot.value)
        frame.builder.node(
            raw.op,
            ids,
            name=self._node_name(raw, scope),
            outputs=outputs,
            types=types,
            attributes=raw.attributes or EMPTY,
            bodies=nested or EMPTY,
            **(fields or {}),
        )
        if raw.name:
            frame.node_ids[raw.name] = len(frame.builder.nodes) - 1
        frame.note_short(frame.builder.nodes[-1])

    def transpose(self, name: str, output: str, scope: Scope) -> None:
        """Define `output` as the transposed matrix `name`."""
        raw = RawNode("Transpose", "", [name], [output], "graph.initializer", {"perm": [1, 0]})
        slots = self.inputs(raw, scope)
        self.make(raw, slots, self._types(raw, self._call_of(raw, slots, scope), slots), scope)

    def inputs(self, raw: RawNode, scope: Scope) -> list[Slot | None]:
        """Slots of the node's inputs, None where absent."""
        return [scope.find(name) if name else None for name in raw.inputs]

    def output(self, name: str, scope: Scope) -> int:
        """Id of a graph output; a value with another name is copied by an Identity with this name."""
        slot = scope.find(name)
        assert slot is not None  # only inputs of function calls may be absent
        if sequences.is_sequence(slot):
            raise sequence_error(f"output {quoted(name)}", "graph.output")
        if slot.name == name:
            return scope.frame.id_of(slot)
        self.make(RawNode("Identity", "", [name], [name], "graph.output"), [slot], [slot.type], scope)
        return self.value_id(name, scope)

    def value_id(self, name: str, scope: Scope) -> int:
        """Id of a value by its name in the file. Raises BadGraph for an undefined name."""
        try:
            slot = scope.find(name)
        except KeyError:
            slot = None
        if slot is None:
            raise BadGraph.one(
                "undefined_value",
                "metadata_props",
                f"{quoted(name)}, which is not defined",
                "a value of the graph",
                "export the graph again",
            )
        return scope.frame.id_of(slot)

    def _restored(self, raw: RawNode, note: NodeNote, scope: Scope) -> None:
        """Add a node of a file written by `remat`, with the fields of its note; never folded."""
        slots = self.inputs(raw, scope)
        nested = control_flow.nested_bodies(self, raw, slots, scope) if raw.bodies else None
        types: Sequence[TensorType | None]
        if nested is None:
            types = self._types(raw, self._call_of(raw, slots, scope), slots)
        else:
            types = [self.model.declared_type(name, scope.is_model) if name else None for name in raw.outputs]
        fields = node_fields(note, lambda name: _node_id(scope, name, raw), lambda name: self.value_id(name, scope))
        self.make(raw, slots, types, scope, nested, fields)

    def _call_of(self, raw: RawNode, slots: Sequence[Slot | None], scope: Scope) -> Call:
        declared = tuple(self.model.declared_type(name, scope.is_model) for name in raw.outputs)
        return Call(
            raw.op,
            raw.attributes,
            tuple(None if s is None else s.type for s in slots),
            declared,
            tuple(bool(name) for name in raw.outputs),
            tuple(None if s is None else s.upper if s.known is None else s.known for s in slots),
            self.model.opset,
        )

    def _bounded(self, raw: RawNode, call: Call, scope: Scope) -> tuple[Call, int | None]:
        """(call, length) of an op with a data-dependent length that the caller bounds; else the call and None."""
        if raw.op not in BOUNDED:
            return call, None
        most = self.model.max_lengths.find(scope.value_name(raw.outputs[0]))
        if most is None:
            return call, None
        first = call.inputs[0]
        shape = (most, 3) if raw.op == "NonMaxSuppression" or first is None else (max(1, len(first.shape)), most)
        return replace(call, outputs=(TensorType("int64", shape),)), most

    def _types(self, raw: RawNode, call: Call, slots: Sequence[Slot | None]) -> tuple[TensorType | None, ...]:
        """Types of the outputs. Raises BadGraph with the types of the inputs and the small constants among them."""
        try:
            if None in slots:
                check_present(raw.op, call.opset, [slot is not None for slot in slots])
            types = infer(call)
            first, out = (call.inputs[0] if call.inputs else None), types[0] if types else None
            if raw.op == "Reshape" and first is not None and out is not None and first.elements != out.elements:
                raise ValueError(f"{first} cannot become {out}")
        except ValueError as error:
            raise conflict_error(raw, slots, str(error)) from None
        for name, inferred, declared in zip(raw.outputs, types, call.outputs, strict=False):
            if inferred is not None and declared is not None and inferred != declared:
                raise conflict_error(
                    raw, slots, f"output {quoted(name)} is declared as {declared}, but the op outputs {inferred}"
                )
        return types

    def _is_weight(self, raw: RawNode, slots: Sequence[Slot | None], types: Sequence[TensorType | None]) -> bool:
        """True for a ConstantOfShape that replaces a weight stripped from the file: its shape is named after it.

        Any other initialises a state or a mask, and is what the file says: a constant.
        """
        if raw.op != "ConstantOfShape" or not slots or slots[0] is None or types[0] is None:
            return False
        is_stripped = slots[0].is_held and raw.inputs[0] == raw.outputs[0] + _STRIPPED
        return is_stripped and types[0].dtype in FLOAT_DTYPES

    def _rebind_batch(self, raw: RawNode, slots: list[Slot | None], scope: Scope) -> list[Slot | None]:
        """Inputs of a Reshape, with the baked target replaced where its leading length was the old batch."""
        source, target = slots
        if source is None or source.type is None or target is None or target.known is None or not target.is_baked:
            return slots
        name = raw.inputs[0] if scope.is_model else ""
        lead = source.type.shape[0] if source.type.shape else None
        changed = self.model.batch.follow_batch(target.known, name, source.type.elements, lead)
        if changed is None:
            return slots
        rebound = Slot(f"{target.name}/batch", type_of_array(changed), scope.frame, Role.CONSTANT, changed)
        return [source, rebound]

    def _constant(self, raw: RawNode, scope: Scope) -> None:
        """Define the tensor of a Constant node, like an initialiser. Raises BadGraph."""
        key, content = next(iter(raw.attributes.items()), ("", None))
        numbers = content if isinstance(content, list) else [content]
        if not isinstance(content, np.ndarray) and all(isinstance(x, float | int) for x in numbers):
            content = np.asarray(content)
            is_float = "float" in key or (content.size > 0 and content.dtype.kind == "f")
            content = content.astype(np.float32 if is_float else np.int64)
        if not isinstance(content, np.ndarray) or len(raw.attributes) != 1 or len(raw.outputs) != 1:
            raise raw.error(
                "bad_attribute",
                f" with {', '.join(raw.attributes) or 'no attribute'}",
                "one of value, value_int, value_ints, value_float, value_floats",
                "correct the node",
            )
        try:
            type = type_of_array(content)
        except ValueError as error:
            raise raw.error("unknown_dtype", f": {error}", "a tensor of numbers", "remove it") from None
        role = Role.CONSTANT  # a Constant inside a function is part of the function, not a weight
        if not scope.in_function:
            role = self.model.roles.role_of(raw.outputs[0], type, content)
        self.model.keep(raw.outputs[0], type, content, role, scope, ValueNote())

    def _call(self, raw: RawNode, proto: NodeProto, function: FunctionProto, scope: Scope) -> None:
        """Inline a call of a function defined by the model."""
        if raw.op in self.calls or len(self.calls) >= self.model.limits.depth:
            raise BadGraph.one(
                "too_deep",
                raw.path,
                f"function {quoted(raw.op)} called inside {' -> '.join(self.calls[:8])}",
                f"functions that do not call themselves, at most {self.model.limits.depth} deep",
                "inline the functions before sending the model",
            )
        if len(raw.outputs) > len(function.output) or len(raw.inputs) > len(function.input):
            raise arity_error(raw, len(function.input), len(function.output))
        given = _actual_attributes(proto, function, scope)
        prefix = f"{scope.prefix}{raw.name or raw.outputs[0]}/"
        inner = Scope(scope.frame, opset_of(function.opset_import), None, prefix, given=given)
        actuals = self.inputs(raw, scope)
        for i, formal in enumerate(function.input):
            inner.slots[formal] = actuals[i] if i < len(actuals) else None
        pairs = [(inside, out) for inside, out in zip(function.output, raw.outputs, strict=False) if out]
        inner.renamed = {inside: scope.value_name(out) for inside, out in pairs}
        self.calls.append(raw.op)
        self.nodes(function.node, inner, f"{raw.path}.{function.name}")
        self.calls.pop()
        for inside, out in pairs:
            scope.slots[out] = inner.find(inside)

    def _node_name(self, raw: RawNode, scope: Scope) -> str:
        """Name of the node in the file; `Op_index` when empty or taken."""
        builder = scope.frame.builder
        name = scope.prefix + raw.name if raw.name else ""
        if name and builder.free_node_name(name) == name:
            return name
        return unique_name(f"{raw.op.rpartition('::')[2]}_{len(builder.nodes)}", self.model.node_names)


def _actual_attributes(proto: NodeProto, function: FunctionProto, scope: Scope) -> dict[str, AttributeProto]:
    """Attributes of a function call: the defaults of the function, overridden by those of the node."""
    found: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
    for attribute in proto.attribute:
        actual = scope.given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if actual is not None:
            found[attribute.name] = actual
    return found


def _node_id(scope: Scope, name: str, raw: RawNode) -> int:
    """Id of an earlier node of the same graph by its name in the file."""
    node_id = scope.frame.node_ids.get(name)
    if node_id is None:
        raise raw.error(
            "bad_note",
            f" runs after {quoted(name)}, which is not an earlier node",
            "an earlier node",
            "export the graph again",
        )
    return node_id


def _known(type: TensorType | None) -> TensorType:
    assert type is not None
    return type
