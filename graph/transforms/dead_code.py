"""Dead code elimination, identity elimination, and the bases of passes that remove or replace nodes.

a ──▶ b ──▶ c ──▶ out
       ╰──▶ d                 without_dead_nodes(graph) removes d
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from graph.analysis.aliasing import views_of
from graph.analysis.effects import has_side_effects
from graph.builder.builder import Builder
from graph.ir import ABSENT, OPERAND_OF, Graph, Node, Role
from graph.ir.reachability import required_nodes
from graph.ir.renumber import remap_node
from graph.validate.check import check


def without_dead_nodes(graph: Graph) -> Graph:
    """`graph` without nodes that no output, gradient, side effect or state update depends on. O(nodes + reads)."""
    wanted = [*graph.outputs, *(gradient for _, gradient in graph.gradients)]
    acting = [n for n, node in enumerate(graph.nodes) if has_side_effects(graph, node)]
    return keep_nodes(graph, required_nodes(graph, wanted, nodes=acting), graph.outputs)


def without_identities(graph: Graph) -> Graph:
    """`graph` without nodes whose outputs are views of an input with the same type; readers read the input.

    A node that writes an output of the graph is kept: outputs keep their names.
    """
    instead: dict[int, int] = {}
    outputs = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
    kept = []
    for n, node in enumerate(graph.nodes):
        pairs = [(node.outputs[output], node.inputs[source]) for output, source in views_of(graph, node)]
        same = all(graph.values[new].type == graph.values[old].type is not None for new, old in pairs)
        if pairs and len(pairs) == len(node.writes) and same and not outputs.intersection(node.writes):
            instead.update((new, instead.get(old, old)) for new, old in pairs)
        else:
            kept.append(n)
    return keep_nodes(graph, kept, graph.outputs, instead=instead)


def replace_nodes(graph: Graph, gone: Collection[int], write: Mapping[int, Callable[[Builder], None]]) -> Graph:
    """`graph` without the nodes `gone`; `write[n]` adds nodes in place of node `n` that write the same results."""
    builder = Builder.from_graph(graph)
    builder.nodes.clear()
    place: dict[int, int] = {}
    for n, node in enumerate(graph.nodes):
        if n in write:
            write[n](builder)
        elif n not in gone:
            place[n] = len(builder.nodes)
            builder.nodes.append(replace(node, after=tuple(place[m] for m in node.after)))
    rewritten = replace(graph, values=tuple(builder.values), nodes=tuple(builder.nodes))
    return keep_nodes(rewritten, range(len(rewritten.nodes)), rewritten.outputs)


def keep_nodes(
    graph: Graph,
    nodes: Iterable[int],
    outputs: Iterable[int],
    *,
    new_inputs: Collection[int] = (),
    unread: Collection[int] | None = None,
    instead: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """`graph` with the given nodes only, in their order, under dense ids; `instead` maps a value to its replacement.

    `new_inputs`: activations that become inputs and are no longer written. Parameters, constants and states are kept
    when read, or when an op of the file has them as operands. Inputs are kept when read or in `unread` (default: all).
    An `after` edge to a removed node is replaced by edges to the nodes in its `after`.
    Raises BadGraph when a read loses its producer.
    """
    chosen, cut = list(nodes), frozenset(new_inputs)
    outputs = [instead.get(v, v) for v in outputs]
    roots = set(outputs) | cut | set(graph.inputs if unread is None else unread) | _operands(graph, chosen)
    used = _used_values(graph, chosen, roots, cut, instead)
    place = {v: i for i, v in enumerate(sorted(used))}
    number = {n: i for i, n in enumerate(chosen)}
    after_edges = _after_edges(graph, number)

    def new(v: int) -> int:
        return ABSENT if v == ABSENT else place[instead.get(v, v)]

    def moved(node: Node) -> Node:
        return remap_node(
            node,
            new,
            outputs=tuple(ABSENT if v in cut else new(v) for v in node.outputs),
            after=tuple(dict.fromkeys(i for n in node.after for i in after_edges.get(n, ()))),
        )

    result = replace(
        graph,
        values=tuple(replace(graph.values[v], role=Role.INPUT) if v in cut else graph.values[v] for v in place),
        nodes=tuple(moved(graph.nodes[n]) for n in chosen),
        outputs=tuple(place[v] for v in outputs),
        inputs=tuple(place[v] for v in (*graph.inputs, *new_inputs) if v in place),
        gradients=tuple((place[p], new(g)) for p, g in graph.gradients if instead.get(g, g) in place),
    )
    check(result)
    return result


def _operands(graph: Graph, nodes: Iterable[int]) -> set[int]:
    """Given values that no node reads, but that are operands of the file's ops with these nodes."""
    noted = {
        v: value.annotations[OPERAND_OF] for v, value in enumerate(graph.values) if OPERAND_OF in value.annotations
    }
    names = {graph.nodes[n].name for n in nodes} if noted else set()
    return {v for v, ops in noted.items() if graph.values[v].role is not Role.ACTIVATION and not names.isdisjoint(ops)}


def _used_values(
    graph: Graph, nodes: Iterable[int], roots: set[int], cut: Collection[int], instead: Mapping[int, int]
) -> set[int]:
    """`roots` with the values that the nodes read, or write and are not in `cut`, and wanted values of gradients."""
    used = set(roots)
    for n in nodes:
        node = graph.nodes[n]
        used.update(instead.get(v, v) for v in node.reads)
        used.update(v for v in node.writes if v not in cut)
    for parameter, gradient in graph.gradients:
        if instead.get(gradient, gradient) in used:
            used.add(parameter)
    return used


def _after_edges(graph: Graph, number: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Per node in some `after`: the new ids to run after instead, its own or, if removed, those of its `after`."""
    edges: dict[int, tuple[int, ...]] = {}
    for n in sorted({m for node in graph.nodes for m in node.after}):
        if n in number:
            edges[n] = (number[n],)
        else:
            edges[n] = tuple(dict.fromkeys(i for m in graph.nodes[n].after for i in edges[m]))
    return edges
