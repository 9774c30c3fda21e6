"""The only way to make a Graph: hands out ids, infers types, keeps names unique, checks at the end.

b = Builder("one layer")
x = b.value("x", TensorType("float32", (64, 784)), Role.INPUT)
w = b.value("w", TensorType("float32", (784, 512)), Role.PARAMETER)
(h,) = b.node("MatMul", [x, w], name="fc1", outputs=["h"])
graph = b.build(outputs=[h])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from graph.errors import BadGraph, Finding
from graph.ir import (
    ABSENT,
    EMPTY,
    UNKNOWN_COST,
    Body,
    Cost,
    Effect,
    Graph,
    Node,
    Phase,
    Role,
    TensorType,
    Value,
)  # fmt: skip


class Builder:
    """Collects values and nodes in order. Names left out or taken are filled as `Op_index`."""

    def __init__(self, name: str = "", opset: Mapping[str, int] | None = None):
        self.name = name
        self.opset = MappingProxyType(dict(opset or {"": 21}))
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.inputs: list[int] = []
        self.order_is_given = False
        self.gradients: list[tuple[int, int]] = []
        self.annotations: Mapping[str, Any] = EMPTY
        self._value_ids: dict[str, int] = {}
        self._node_names: set[str] = set()

    @classmethod
    def onto(cls, graph: Graph) -> Builder:
        """A builder that starts as a copy of `graph`; ids stay as they are."""
        builder = cls(graph.name, graph.opset)
        builder.values, builder.nodes, builder.inputs = list(graph.values), list(graph.nodes), list(graph.inputs)
        builder.order_is_given, builder.gradients = graph.order_is_given, list(graph.gradients)
        builder.annotations = graph.annotations
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
        """Id of a new value; `rest` are further fields of `Value`."""
        name = self._free_value_name(name or f"value_{len(self.values)}")
        v = len(self.values)
        self.values.append(Value(name, type, role, data=data, **rest))
        self._value_ids[name] = v
        if role is Role.INPUT:
            self.inputs.append(v)
        return v

    def constant(self, data: np.ndarray, name: str = "") -> int:
        """Id of a new constant with known content."""
        from graph.ops.standard_ops import type_of_array

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

        `outputs` is how many, or per output a name for a new value, the id of one made before, or
        None for one nobody wants. Types left out are inferred; `rest` are further fields of `Node`.
        """
        name = self.free_node_name(name or f"{op.rpartition('::')[2]}_{len(self.nodes)}")
        slots: list[str | int | None] = (
            [name if outputs == 1 else f"{name}:{i}" for i in range(outputs)]
            if isinstance(outputs, int)
            else list(outputs)
        )
        ids = tuple(ABSENT if slot is None else slot if isinstance(slot, int) else self.value(slot) for slot in slots)
        node = Node(name, op, tuple(inputs), ids, attributes, phase, **rest)
        self._type_outputs(node, types)
        self.nodes.append(node)
        self._node_names.add(name)
        return ids

    def want_output(self, node_id: int, position: int) -> int:
        """Id of an output of a node made before; where the node leaves it out it is added and its type inferred."""
        node = self.nodes[node_id]
        if position < len(node.outputs) and node.outputs[position] != ABSENT:
            return node.outputs[position]
        slots = [*node.outputs, *[ABSENT] * (position + 1 - len(node.outputs))]
        slots[position] = self.value(f"{node.name}:{position}")
        self.nodes[node_id] = replace(node, outputs=tuple(slots))
        self._type_outputs(self.nodes[node_id], None)
        return slots[position]

    def build(self, outputs: Iterable[int] = ()) -> Graph:
        """The checked graph. Raises BadGraph with up to ten findings."""
        from graph.check import check

        graph = Graph(
            self.name, tuple(self.values), tuple(self.nodes), tuple(outputs), tuple(self.inputs), self.opset,
            self.order_is_given, tuple(self.gradients), self.annotations,
        )  # fmt: skip
        check(graph)
        return graph

    def _type_outputs(self, node: Node, types: Sequence[TensorType | None] | None) -> None:
        """Give the node's outputs the types declared or inferred; both must agree."""
        from graph.ops import infer
        from graph.ops.table import Call

        declared = [
            (types[i] if types is not None and i < len(types) else None)
            or (self.values[v].type if v != ABSENT else None)
            for i, v in enumerate(node.outputs)
        ]
        call = Call(
            node.op,
            node.attributes,
            tuple(None if v == ABSENT else self.values[v].type for v in node.inputs),
            tuple(declared),
            tuple(v != ABSENT for v in node.outputs),
            tuple(None if v == ABSENT else self.values[v].data for v in node.inputs),
            self.opset.get("", 21),
        )
        where = f"nodes[{len(self.nodes)}]"
        try:
            inferred = () if node.bodies else infer(call)  # a body's types are known to whoever made it
        except ValueError as error:
            raise BadGraph.one(
                "type_conflict", where, f"{node.op} {node.name}: {error}", "types the op accepts",
                "correct the shapes, dtypes or attributes of this node",
            ) from None  # fmt: skip
        for i, v in enumerate(node.outputs):
            if v == ABSENT:
                continue
            found = inferred[i] if i < len(inferred) else None
            wanted = declared[i]
            if wanted is not None and found is not None and wanted != found and not self.values[v].fixed_bytes:
                raise BadGraph.one(
                    "type_conflict", f"{where}.outputs[{i}]", f"{self.values[v].name} declared as {wanted}",
                    f"{found}, as {node.op} makes it", "correct the declaration or leave it out",
                )  # fmt: skip
            self.values[v] = replace(self.values[v], type=wanted or found)

    def free_node_name(self, name: str) -> str:
        return _free(name, self._node_names)

    def _free_value_name(self, name: str) -> str:
        return _free(name, self._value_ids)


def _free(name: str, taken: Iterable[str] | Mapping[str, int]) -> str:
    """`name`, or `name/1`, `name/2`, ... when it is taken."""
    candidate, k = name, 0
    while candidate in taken:
        k += 1
        candidate = f"{name}/{k}"
    return candidate


__all__ = ["UNKNOWN_COST", "Body", "Builder", "Cost", "Effect", "Finding"]
