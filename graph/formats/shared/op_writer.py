"""Graphs that come from elsewhere, in the words of a framework: standard ops under the names it has for them.

A spelling looks at one node and says the framework's op, its attributes and which inputs it keeps; a node no
spelling takes stays as it is, and the writer tells so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from graph.formats.shared.rows import Origin
from graph.ir import ABSENT, Graph, Node, Phase, TensorType


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a spelling sees it."""

    graph: Graph
    node: Node

    def type(self, position: int) -> TensorType | None:
        v = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        return None if v == ABSENT else self.graph.values[v].type

    def content(self, position: int) -> np.ndarray | None:
        v = self.node.inputs[position] if position < len(self.node.inputs) else ABSENT
        return None if v == ABSENT else self.graph.values[v].data

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    @property
    def made(self) -> TensorType | None:
        return self.graph.values[self.node.outputs[0]].type if self.node.outputs[0] != ABSENT else None


#: spelling(look) -> (op, attributes, positions of the inputs that stay), or None
OpConverter = Callable[[NodeView], "tuple[str, dict[str, Any], list[int]] | None"]


def with_framework_ops(graph: Graph, framework: str, spellings: Mapping[str, OpConverter]) -> Graph:
    """The graph with the framework's words noted on forward nodes that have none. O(nodes)."""
    nodes = list(graph.nodes)
    for n, node in enumerate(nodes):
        spelling = spellings.get(node.op)
        if framework in node.annotations or node.phase is not Phase.FORWARD or spelling is None or not node.outputs:
            continue
        said = spelling(NodeView(graph, node))
        if said is None:
            continue
        op, attributes, kept = said
        names = ["" if v == ABSENT else graph.values[v].name for v in node.inputs]
        outputs = ["" if v == ABSENT else graph.values[v].name for v in node.outputs]
        origin = Origin(node.name, op, node.name, attributes, [names[i] for i in kept if i < len(names)], outputs)
        annotations = {**node.annotations, framework: msgspec.to_builtins(origin)}
        nodes[n] = replace(node, annotations=MappingProxyType(annotations))
    return replace(graph, nodes=tuple(nodes))
