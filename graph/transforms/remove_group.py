"""Removal of a group of nodes that acts as an identity: readers of its output read its input.

r ──▶ Shape ──▶ s ──▶ ... ──▶ ns ──╮
r ─────────────────────────────▶ Reshape ──▶ rr ──▶ FC        becomes        r ──▶ FC
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from graph.errors import Findings, quoted
from graph.ir import Graph, Node, Role, Value
from graph.transforms.boundary import ValueUses, boundary
from graph.transforms.dead_code import keep_nodes

#: True for a node that accepts an operand with another shape of equal content.
ShapePredicate = Callable[[Node], bool]


def accepts_none(node: Node) -> bool:
    """False: no node accepts another shape."""
    return False


def replace_by_identity(graph: Graph, nodes: Collection[int], accepts: ShapePredicate = accepts_none) -> Graph:
    """`graph` without a group of nodes; readers of its one result read its one input instead.

    Inputs and parameters of the graph do not count as input of the group; those that only the group reads are removed
    with it. Raises BadGraph when the group is not isolated, when its result is an output of the graph, or when the
    input has another type and a reader does not accept it.
    """
    findings = Findings()
    pair = identity_pair(graph, nodes, ValueUses.of(graph), accepts, findings)
    findings.settle()
    return without_groups(graph, set(nodes), {pair[1]: pair[0]})


def without_groups(graph: Graph, nodes: Collection[int], instead: Mapping[int, int]) -> Graph:
    """`graph` without the nodes and the inputs that only they read; `instead` maps a result to its replacement."""
    kept = [n for n in range(len(graph.nodes)) if n not in nodes]
    read = {v for n in nodes for v in graph.nodes[n].reads}
    return keep_nodes(graph, kept, graph.outputs, instead=instead, unread=[v for v in graph.inputs if v not in read])


def identity_pair(
    graph: Graph, nodes: Collection[int], uses: ValueUses, accepts: ShapePredicate, findings: Findings
) -> tuple[int, int]:
    """(input, output) of the group; (-1, -1) with findings when there is no such pair."""
    inside = frozenset(nodes)
    border = boundary(graph, inside, uses)
    activations_in = [v for v in border.inputs if graph.values[v].role is Role.ACTIVATION]
    if len(activations_in) != 1 or len(border.outputs) != 1:
        named = ", ".join(quoted(graph.values[v].name) for v in (*activations_in, *border.outputs)[:8])
        findings.add(
            "not_isolated",
            "nodes",
            f"{len(activations_in)} inputs that are no parameters and {len(border.outputs)} outputs: {named}",
            "one input and one output",
            "choose a group with one input and one output",
        )
        return -1, -1
    source, result = activations_in[0], border.outputs[0]
    if result in uses.results:
        findings.add(
            "not_isolated",
            "nodes",
            f"{quoted(graph.values[result].name)}, which is an output of the graph",
            "a result that is not an output",
            "keep the group, or choose another output",
        )
    one, other = graph.values[source], graph.values[result]
    if (one.type, one.nbytes) != (other.type, other.nbytes):
        for n in uses.readers[result]:
            if n not in inside and not accepts(graph.nodes[n]):
                findings.add(
                    "type_conflict",
                    f"nodes[{n}]",
                    f"{quoted(graph.nodes[n].name)} reads {quoted(other.name)}, {_size(other)}",
                    f"{_size(one)}, the type of {quoted(one.name)}",
                    "keep the group, or declare that this op accepts both shapes",
                )
    return source, result


def _size(value: Value) -> str:
    return f"{value.type or f'{value.nbytes:,} bytes'}"
