"""A graph whose nodes are those that its ONNX file will have, so that a plan knows what each of them holds.

    x, dy ──▶ BatchNormGrad ──▶ dx        becomes        x, dy ──▶ Sub ──▶ Mul ──▶ ... ──▶ dx

Bytes within a decomposed op depend on the plan: whether x is freed after its first part, or is read again later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.analysis.effects import effect_of
from graph.formats.onnx.decompose import flattened
from graph.ir import ABSENT, UNKNOWN_COST, Effect, Graph, Node, Value
from graph.ir.names import reserve_name
from graph.ir.renumber import remap_node


def with_standard_nodes(graph: Graph) -> Graph:
    """The graph with pure nodes of unknown cost decomposed as in its file. Ids and names of its values are kept.

    The part that writes the first output of a node has its name.
    """
    file = _Decomposed(graph)
    last: dict[int, int] = {}  # node -> the last of its parts
    for n, node in enumerate(graph.nodes):
        file.add(graph, replace(node, after=tuple(last[before] for before in node.after)))
        last[n] = len(file.nodes) - 1
    return replace(graph, values=tuple(file.values), nodes=tuple(file.nodes))


class _Decomposed:
    def __init__(self, graph: Graph):
        self.values, self.nodes = list(graph.values), list[Node]()
        self._value_names = {value.name for value in graph.values}
        self._node_names = {node.name for node in graph.nodes}
        self._constants: dict[Any, int] = {}  # content -> value

    def add(self, graph: Graph, node: Node) -> None:
        """Add a node of the graph, or its parts."""
        is_plain = not (node.in_place or node.views) and node.cost == UNKNOWN_COST
        if not is_plain or effect_of(graph, node) is not Effect.PURE:
            self.nodes.append(node)
            return
        first = node.writes[0] if node.writes else ABSENT
        kept = {"phase": node.phase, "recompute": node.recompute, "annotations": node.annotations, "after": node.after}
        for part, place in flattened(graph, node, dict(enumerate(range(len(graph.values)))), self._value):
            plain = remap_node(part, place.__getitem__)
            name = node.name if first in plain.writes else reserve_name(f"{node.name}/{part.op}", self._node_names)
            self.nodes.append(replace(plain, name=name, **kept))

    def _value(self, name: str, value: Value) -> int:
        """Id of a value within a node; equal constants are one value."""
        key = None
        if value.data is not None:
            array = np.asarray(value.data)
            key = (array.dtype.name, array.shape, array.tobytes())
            if key in self._constants:
                return self._constants[key]
            self._constants[key] = len(self.values)
        own = value.name if value.name.startswith(name) else f"{name}/{value.name}"
        self.values.append(replace(value, name=reserve_name(own, self._value_names)))
        return len(self.values) - 1
