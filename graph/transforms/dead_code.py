"""Passes from graph to graph: dead nodes, identities, and what all passes that leave nodes out have in common.

a ──▶ b ──▶ c ──▶ out
       ╰──▶ d                 without_dead_nodes(graph): d goes

None changes its argument. Where names are written more than once, the order they ask for is taken off
before a pass and put back for what is left; `graph.surgery` holds the passes that need more than this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from graph.analysis.aliasing import views_of
from graph.analysis.effects import has_side_effects
from graph.ir import ABSENT, Graph, Node, Role, producers
from graph.ir.reachability import reachable_nodes
from graph.ir.renumber import remap_node
from graph.ssa.naming import with_name_order, without_name_order
from graph.validate.check import check


def without_dead_nodes(graph: Graph) -> Graph:
    """`graph` without nodes that no output, gradient, effect or overwritten state depends on. O(nodes + reads)."""
    graph = without_name_order(graph)
    wanted = [*graph.outputs, *(gradient for _, gradient in graph.gradients)]
    acting = [n for n, node in enumerate(graph.nodes) if has_side_effects(graph, node)]
    return keep_nodes(graph, required_nodes(graph, wanted, nodes=acting), graph.outputs)


def required_nodes(
    graph: Graph, values: Iterable[int], given: Collection[int] = (), nodes: Iterable[int] = ()
) -> list[int]:
    """Nodes that must run, in order, for `values` and `nodes` when the `given` values are there. O(nodes + reads).

    A node needs the producers of what it reads and what it comes after.
    """
    producer = [-1 if v in given else n for v, n in enumerate(producers(graph))]
    roots = [*nodes, *(producer[v] for v in values if producer[v] >= 0)]
    alive = reachable_nodes(roots, [node.reads for node in graph.nodes], producer, [node.after for node in graph.nodes])
    return [n for n in range(len(graph.nodes)) if alive[n]]


def without_identities(graph: Graph) -> Graph:
    """`graph` without nodes that show an input under its own type; readers read the input itself.

    One that makes an output of the graph stays: outputs keep their names.
    """
    graph = without_name_order(graph)
    instead: dict[int, int] = {}
    outputs = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
    stay = []
    for n, node in enumerate(graph.nodes):
        shown = views_of(graph, node)
        pairs = [(node.outputs[output], node.inputs[source]) for output, source in shown]
        same = all(graph.values[new].type == graph.values[old].type is not None for new, old in pairs)
        if pairs and len(pairs) == len(node.writes) and same and not outputs.intersection(node.writes):
            instead.update((new, instead.get(old, old)) for new, old in pairs)
        else:
            stay.append(n)
    return keep_nodes(graph, stay, graph.outputs, instead=instead)


def keep_nodes(
    graph: Graph,
    nodes: Iterable[int],
    outputs: Iterable[int],
    *,
    new_inputs: Collection[int] = (),
    unread: Collection[int] | None = None,
    instead: Mapping[int, int] = MappingProxyType({}),
) -> Graph:
    """The given nodes of `graph` in their order, under dense ids; `instead` says which value is read for another.

    `new_inputs` are activations that become inputs and are written no more. What is there from the start
    stays when it is read; of the inputs that nobody reads those in `unread` stay, all by default. Who waits
    for a node that is left out waits for what that one waited for; the order that names ask for is put back.
    Raises BadGraph when a read loses its producer.
    """
    chosen, cut = list(nodes), frozenset(new_inputs)
    outputs = [instead.get(v, v) for v in outputs]
    used = set(outputs) | cut | set(graph.inputs if unread is None else unread)
    for n in chosen:
        node = graph.nodes[n]
        used.update(instead.get(v, v) for v in node.reads)
        used.update(set(node.writes) - cut)
    for parameter, gradient in graph.gradients:
        if instead.get(gradient, gradient) in used:
            used.add(parameter)
    place = {v: i for i, v in enumerate(sorted(used))}
    number = {n: i for i, n in enumerate(chosen)}
    waits = _waits(graph, number)

    def new(v: int) -> int:
        return ABSENT if v == ABSENT else place[instead.get(v, v)]

    def moved(node: Node) -> Node:
        return remap_node(
            node,
            new,
            outputs=tuple(ABSENT if v in cut else new(v) for v in node.outputs),
            after=tuple(dict.fromkeys(i for n in node.after for i in waits.get(n, ()))),
        )

    result = replace(
        graph,
        values=tuple(replace(graph.values[v], role=Role.INPUT) if v in cut else graph.values[v] for v in place),
        nodes=tuple(moved(graph.nodes[n]) for n in chosen),
        outputs=tuple(place[v] for v in outputs),
        inputs=tuple(place[v] for v in (*graph.inputs, *new_inputs) if v in place),
        gradients=tuple((place[p], new(g)) for p, g in graph.gradients if instead.get(g, g) in place),
    )
    result = with_name_order(result)
    check(result)
    return result


def _waits(graph: Graph, number: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Per node that others wait for the new numbers to wait for instead: its own, or those it waited for."""
    found: dict[int, tuple[int, ...]] = {}
    for n in sorted({m for node in graph.nodes for m in node.after}):
        if n in number:
            found[n] = (number[n],)
        else:
            found[n] = tuple(dict.fromkeys(i for m in graph.nodes[n].after for i in found[m]))
    return found
