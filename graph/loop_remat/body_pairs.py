"""Pairs of a forward node with bodies and the node that goes through its trips backwards.

    F  Scan or Loop ──▶ states, stacks        stacks: one row a trip
              ╰── stacks nobody else reads ──▶ G  Scan, last trip first; annotations.gradient_of = F
    F  If or Call   ──▶ outputs ─────────────▶ G  If or Call

Whoever writes graphs that way, by differentiation or by hand, gets bodies planned together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graph.ir import ABSENT, UNKNOWN_COST, Graph, Node, Phase, consumers
from graph.ops.control_flow import CALL
from graph.ops.registry.onnx_fallback import freeze

#: Op of the forward node -> op of the backward one.
BACKWARD_OP = {"Scan": "Scan", "Loop": "Scan", "If": "If", CALL: CALL}


@dataclass(frozen=True, slots=True)
class BodyPair:
    """Node ids of a graph; `droppable` are outputs of the forward node that only the backward one reads."""

    forward: int
    backward: int
    droppable: tuple[int, ...]  # value ids, in the order they are written


def find_pairs(graph: Graph) -> tuple[BodyPair, ...]:
    """The pairs of the graph itself, not of its bodies, by forward node. O(nodes + reads).

    A node is in one pair at most: a forward node with two backward ones, as differentiating twice makes
    them, is in none. Nor is one whose outputs show or overwrite inputs, or whose document says what it
    takes: nobody knows what it would take with another body.
    """
    backward_of: dict[str, list[int]] = {}
    for n, node in enumerate(graph.nodes):
        of = node.annotations.get("gradient_of")
        if node.bodies and isinstance(of, str) and node.phase is not Phase.FORWARD:
            backward_of.setdefault(of, []).append(n)
    if not backward_of:
        return ()
    readers, handed_out = consumers(graph), set(graph.outputs)
    pairs = []
    for f, node in enumerate(graph.nodes):
        found = backward_of.get(node.name, ())
        if len(found) != 1 or graph.nodes[found[0]].op != BACKWARD_OP.get(node.op) or found[0] < f:
            continue
        only = tuple(v for v in node.writes if readers[v] == [found[0]] and v not in handed_out)
        if only and _is_free(node) and _is_free(graph.nodes[found[0]]):
            pairs.append(BodyPair(f, found[0], only))
    return tuple(pairs)


def _is_free(node: Node) -> bool:
    return not node.in_place and not node.views and node.cost == UNKNOWN_COST


def structure_key(graph: Graph, pair: BodyPair) -> Any:
    """Equal for pairs that are the same but for names and for what is outside: what is planned once."""
    forward, backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
    place: dict[int, int] = {}
    return (_node(graph, forward, place), _node(graph, backward, place), tuple(place[v] for v in pair.droppable))


def _node(graph: Graph, node: Node, place: dict[int, int]) -> Any:
    """A node by structure; `place` numbers the values around it in the order they are met."""

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
        bool(node.stream),
        node.annotations.get("max_trips"),
        tuple(
            (key, tuple((inner, number(outer)) for inner, outer in body.captures), _graph(body.graph))
            for key, body in sorted(node.bodies.items())
        ),
    )


def _graph(graph: Graph) -> Any:
    place: dict[int, int] = {}
    values = tuple((str(v.type), v.role, v.nbytes, None if v.data is None else v.data.tobytes()) for v in graph.values)
    nodes = tuple(_node(graph, node, place) for node in graph.nodes)
    return values, nodes, graph.inputs, graph.outputs, tuple(_links(graph))


def _links(graph: Graph) -> Iterator[tuple[int, int]]:
    """(backward node, forward node) by number: names differ between equal bodies."""
    number = {node.name: n for n, node in enumerate(graph.nodes)}
    for n, node in enumerate(graph.nodes):
        of = node.annotations.get("gradient_of")
        if isinstance(of, str) and of in number:
            yield n, number[of]
