"""Construction of Graphs: assigns ids, infers types, keeps names unique, validates the result.

b = Builder("one layer")
x = b.value("x", TensorType("float32", (64, 784)), Role.INPUT)
w = b.value("w", TensorType("float32", (784, 512)), Role.PARAMETER)
(h,) = b.node("MatMul", [x, w], name="fc1", outputs=["h"])
graph = b.build(outputs=[h])
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph import cancellation
from graph.errors import BadGraph, Finding
from graph.ir import ABSENT, EMPTY, UNKNOWN_COST, Body, Cost, Effect, Graph, Node, Phase, Role, TensorType, Value
from graph.ir.names import unique_name
from graph.ops.control_flow.type_inference import output_types
from graph.ops.registry.dispatch import infer
from graph.ops.registry.onnx_fallback import type_of_array
from graph.ops.registry.registry import Call
from graph.validate.check import check


class Builder:
    """Graph under construction. Omitted node names become `Op_index`; names already in use get a suffix."""

    def __init__(self, name: str = "", opset: Mapping[str, int] | None = None):
        self.name = name
        self.opset = MappingProxyType(dict(opset or {"": 21}))
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.order_is_given = False
        self.gradients: list[tuple[int, int]] = []
        self.annotations: Mapping[str, Any] = EMPTY
        self.gradient_rules: Mapping[str, Any] = EMPTY
        self._value_ids: dict[str, int] = {}
        self._node_names: set[str] = set()
        self._passed_values: dict[str, int] = {}  # suffixes in use by name, as `unique_name` found them
        self._passed_nodes: dict[str, int] = {}

    @classmethod
    def from_graph(cls, graph: Graph) -> Builder:
        """A builder initialized with the content of `graph`; ids are unchanged."""
        builder = cls(graph.name, graph.opset)
        builder.values, builder.nodes, builder.inputs = list(graph.values), list(graph.nodes), list(graph.inputs)
        builder.order_is_given, builder.gradients = graph.order_is_given, list(graph.gradients)
        builder.annotations, builder.gradient_rules = graph.annotations, graph.gradient_rules
        builder._value_ids = {value.name: v for v, value in enumerate(graph.values)}
        builder._node_names = {node.name for node in graph.nodes}
        return builder

    def value(
        self,
        name: str = "",
        type: TensorType | None = None,
        role: Role = Role.ACTIVATION,
        *,
        data: np.ndarray | None = None,
        **rest: Any,
    ) -> int:
        """Id of a new value; `rest` are other fields of `Value`."""
        name = self._free_value_name(name or f"value_{len(self.values)}")
        v = len(self.values)
        self.values.append(Value(name, type, role, data=data, **rest))
        self._value_ids[name] = v
        if role is Role.INPUT:
            self.inputs.append(v)
        return v

    def constant(self, data: np.ndarray, name: str = "") -> int:
        """Id of a new constant with known content."""
        return self.value(name or f"constant_{len(self.values)}", type_of_array(data), Role.CONSTANT, data=data)

    def node(
        self,
        op: str,
        inputs: Sequence[int],
        *,
        name: str = "",
        outputs: int | Sequence[str | int | None] = 1,
        types: Sequence[TensorType | None] | None = None,
        attributes: Mapping[str, Any] = EMPTY,
        phase: Phase = Phase.FORWARD,
        **rest: Any,
    ) -> tuple[int, ...]:
        """Ids of the new node's outputs.

        `outputs` is their number, or per output the name of a new value, the id of an existing one, or
        None for an unused one. Omitted types are inferred; `rest` are other fields of `Node`.
        Raises BadGraph when declared and inferred types differ.
        """
        cancellation.check_cancelled()
        name = self.free_node_name(name or f"{op.rpartition('::')[2]}_{len(self.nodes)}")
        slots: Sequence[str | int | None]
        if not isinstance(outputs, int):
            slots = [None if slot == ABSENT else slot for slot in outputs]
        else:
            slots = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        values, inputs = self.values, tuple(inputs)
        declared = [values[slot].type if isinstance(slot, int) else None for slot in slots]
        if types is not None:
            declared = [given or known for given, known in itertools.zip_longest(types[: len(slots)], declared)]
        used = tuple([slot is not None for slot in slots])
        bodies = rest.get("bodies", EMPTY)
        if bodies:
            result_types = self._types_from_bodies(
                Node(name, op, inputs, (), attributes, bodies=bodies), rest, declared
            )
        else:
            result_types = self._types(name, op, inputs, attributes, declared, used, slots)
        ids = tuple(
            [
                ABSENT if slot is None else self._typed(slot, type) if isinstance(slot, int) else self.value(slot, type)
                for slot, type in zip(slots, result_types, strict=True)
            ]
        )
        self.nodes.append(Node(name, op, inputs, ids, attributes, phase, **rest))
        self._node_names.add(name)
        return ids

    def append(self, node: Node) -> None:
        """Add an existing node over values of this builder, renamed if its name is in use."""
        name = self.free_node_name(node.name)
        self.nodes.append(node if name == node.name else replace(node, name=name))
        self._node_names.add(name)

    def ensure_output(self, node_id: int, position: int) -> int:
        """Id of output `position` of an existing node; an omitted output is added, with its inferred type."""
        node = self.nodes[node_id]
        if position < len(node.outputs) and node.outputs[position] != ABSENT:
            return node.outputs[position]
        slots = [*node.outputs, *[ABSENT] * (position + 1 - len(node.outputs))]
        declared = [None if v == ABSENT else self.values[v].type for v in slots]
        used = tuple(v != ABSENT or i == position for i, v in enumerate(slots))
        types = self._types(node.name, node.op, node.inputs, node.attributes, declared, used, slots)
        slots[position] = self.value(f"{node.name}:{position}", types[position])
        self.nodes[node_id] = replace(node, outputs=tuple(slots))
        return slots[position]

    def build(self, outputs: Iterable[int] = ()) -> Graph:
        """The validated graph. Raises BadGraph with up to ten findings."""
        graph = Graph(
            self.name,
            tuple(self.values),
            tuple(self.nodes),
            tuple(outputs),
            tuple(self.inputs),
            self.opset,
            self.order_is_given,
            tuple(self.gradients),
            self.annotations,
            self.gradient_rules,
        )
        check(graph)
        return graph

    def _types(
        self,
        name: str,
        op: str,
        inputs: tuple[int, ...],
        attributes: Mapping[str, Any],
        declared: Sequence[TensorType | None],
        used: tuple[bool, ...],
        slots: Sequence[str | int | None],
    ) -> list[TensorType | None]:
        """Types of a node's outputs, declared or inferred. Raises BadGraph when they differ."""
        values = self.values
        given = [_ABSENT_VALUE if v == ABSENT else values[v] for v in inputs]
        call = Call(
            op,
            attributes,
            tuple([x.type for x in given]),
            tuple(declared),
            used,
            tuple([x.data for x in given]),
            self.opset.get("", 21),
        )
        where = f"nodes[{len(self.nodes)}]"
        try:
            inferred = infer(call)
        except ValueError as error:
            raise BadGraph.one(
                "type_conflict",
                where,
                f"{op} {name}: {error}",
                "types the op accepts",
                "correct the shapes, dtypes or attributes of this node",
            ) from None
        result: list[TensorType | None] = []
        for i, (slot, known) in enumerate(zip(slots, declared, strict=True)):
            inferred_type = inferred[i] if i < len(inferred) and used[i] else None
            if known is not None and inferred_type is not None and known != inferred_type:
                value = values[slot] if isinstance(slot, int) and slot != ABSENT else None
                if value is None or not value.fixed_bytes:
                    raise BadGraph.one(
                        "type_conflict",
                        f"{where}.outputs[{i}]",
                        f"{value.name if value is not None else slot} declared as {known}",
                        f"{inferred_type}, as {op} makes it",
                        "correct the declaration or leave it out",
                    )
            result.append(known or inferred_type)
        return result

    def _types_from_bodies(
        self, node: Node, fields: Mapping[str, Any], declared: Sequence[TensorType | None]
    ) -> list[TensorType | None]:
        """Output types of a node with bodies: declared, else inferred. `build` compares the two."""
        inferred = output_types(replace(node, annotations=fields.get("annotations", EMPTY)), self.values) or []
        return [known or type for known, type in itertools.zip_longest(declared, inferred[: len(declared)])]

    def _typed(self, v: int, type: TensorType | None) -> int:
        """`v`, after setting the type of its value."""
        if self.values[v].type is not type:
            self.values[v] = replace(self.values[v], type=type)
        return v

    def free_node_name(self, name: str) -> str:
        return unique_name(name, self._node_names, self._passed_nodes)

    def _free_value_name(self, name: str) -> str:
        return unique_name(name, self._value_ids, self._passed_values)


_ABSENT_VALUE = Value("")  # stands for an absent input


__all__ = ["UNKNOWN_COST", "Body", "Builder", "Cost", "Effect", "Finding"]
