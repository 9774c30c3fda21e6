"""Renumbering of value ids in nodes and graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from graph.ir.records import ABSENT, Body, Graph, Node, Value


def remap_node(node: Node, new: Callable[[int], int], **fields: Any) -> Node:
    """The node with every value id v, captures included, replaced by `new(v)`, and `fields` overridden."""

    def remap(ids: Iterable[int]) -> tuple[int, ...]:
        return tuple([ABSENT if v == ABSENT else new(v) for v in ids])

    reads, bodies = node.gradient_reads, node.bodies
    if bodies:
        bodies = MappingProxyType({key: remap_captures(body, new) for key, body in bodies.items()})
    changed = {
        "inputs": remap(node.inputs),
        "outputs": remap(node.outputs),
        "bodies": bodies,
        "gradient_reads": None if reads is None else remap(reads),
    }
    return replace(node, **(changed | fields))


def remap_captures(body: Body, new: Callable[[int], int]) -> Body:
    """The body with every captured outer value v replaced by `new(v)`."""
    return Body(body.graph, tuple((inner, new(outer)) for inner, outer in body.captures))


def restrict_values(
    graph: Graph, ids: Sequence[int], nodes: Iterable[Node] | None = None, values: Sequence[Value] | None = None
) -> Graph:
    """The graph restricted to the values `ids`, `ids[i]` becoming i; `nodes` and `values` default to the graph's."""
    new = {v: i for i, v in enumerate(ids)}.__getitem__
    values = graph.values if values is None else values
    return replace(
        graph,
        values=tuple([values[v] for v in ids]),
        nodes=tuple(remap_node(node, new) for node in (graph.nodes if nodes is None else nodes)),
        outputs=tuple(map(new, graph.outputs)),
        inputs=tuple(map(new, graph.inputs)),
        gradients=tuple((new(p), new(g)) for p, g in graph.gradients),
    )
