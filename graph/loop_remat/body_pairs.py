"""Pairs of a forward node with bodies and its backward node, which runs the iterations in reverse order.

    F  Scan or Loop ──▶ states, stacks        stacks: one row a trip
              ╰── stacks only G reads ───────▶ G  Scan, last trip first; annotations.gradient_of = F
    F  If or Call   ──▶ outputs ─────────────▶ G  If or Call

Pairs are found in differentiated and in hand-written graphs; their bodies are planned together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graph.ir import ABSENT, UNKNOWN_COST, Graph, Node, Phase, consumers
from graph.ops.control_flow import CALL
from graph.ops.control_flow.interface import ROWS
from graph.ops.registry.onnx_fallback import freeze

#: Op of the forward node -> op of the backward node.
BACKWARD_OP = {"Scan": "Scan", "Loop": "Scan", "If": "If", CALL: CALL}


@dataclass(frozen=True, slots=True)
class BodyPair:
    """Node ids of a pair; `droppable` are outputs of the forward node that only the backward node reads."""

    forward: int
    backward: int
    droppable: tuple[int, ...]  # value ids, in write order


def find_pairs(graph: Graph) -> tuple[BodyPair, ...]:
    """Pairs at the top level of the graph, bodies excluded, ordered by forward node. O(nodes + reads).

    A node is in at most one pair: a forward node with two backward nodes, the result of differentiating twice,
    is in none. Nodes with views, outputs in place or a declared cost are excluded: their cost with another
    body is unknown.
    """
    backward_of: dict[str, list[int]] = {}
    for n, node in enumerate(graph.nodes):
        of = node.annotations.get("gradient_of") if node.bodies else None
        if isinstance(of, str) and node.phase is not Phase.FORWARD:
            backward_of.setdefault(of, []).append(n)
    if not backward_of:
        return ()
    readers, outputs = consumers(graph), set(graph.outputs)
    pairs = []
    for f, node in enumerate(graph.nodes):
        backwards = backward_of.get(node.name, ())
        if len(backwards) != 1 or graph.nodes[backwards[0]].op != BACKWARD_OP.get(node.op) or backwards[0] < f:
            continue
        only = tuple(v for v in node.writes if readers[v] == [backwards[0]] and v not in outputs)
        if only and _is_free(node) and _is_free(graph.nodes[backwards[0]]):
            pairs.append(BodyPair(f, backwards[0], only))
    return tuple(pairs)


def _is_free(node: Node) -> bool:
    return not node.in_place and not node.views and node.cost == UNKNOWN_COST


def structure_key(graph: Graph, pair: BodyPair) -> Any:
    """Hashable key, equal for pairs that are equal up to names and outer values; such pairs share one plan."""
    forward, backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
    numbers: dict[int, int] = {}
    return (_node(graph, forward, numbers), _node(graph, backward, numbers), tuple(numbers[v] for v in pair.droppable))


def _node(graph: Graph, node: Node, place: dict[int, int]) -> Any:
    """Structural key of a node; `place` numbers its values by first occurrence."""

    def number(v: int) -> Any:
        return v if v == ABSENT else (place.setdefault(v, len(place)), str(graph.values[v].type), graph.values[v].bytes)

    return (
        node.op,
        freeze(node.attributes),
        tuple(map(number, node.inputs)),
        tuple(map(number, node.outputs)),
        node.phase,
        node.cost,
        node.effect,
        node.recompute,
        node.heavy,
        node.views,
        node.in_place,
        node.takeover,
        bool(node.stream),
        node.annotations.get("max_trips"),
        node.annotations.get("checkpointed"),
        node.annotations.get(ROWS),
        tuple(
            (key, tuple((inner, number(outer)) for inner, outer in body.captures), _graph(body.graph))
            for key, body in sorted(node.bodies.items())
        ),
    )


def _graph(graph: Graph) -> Any:
    numbers: dict[int, int] = {}
    values = tuple((str(v.type), v.role, v.nbytes, None if v.data is None else v.data.tobytes()) for v in graph.values)
    nodes = tuple(_node(graph, node, numbers) for node in graph.nodes)
    return values, nodes, graph.inputs, graph.outputs, tuple(_links(graph))


def _links(graph: Graph) -> Iterator[tuple[int, int]]:
    """(backward node, forward node) ids, since names differ between equal bodies."""
    number = {node.name: n for n, node in enumerate(graph.nodes)}
    for n, node in enumerate(graph.nodes):
        of = node.annotations.get("gradient_of")
        if isinstance(of, str) and of in number:
            yield n, number[of]
