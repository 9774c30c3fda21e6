"""Replacing a group of nodes by nothing: its readers take what went in for what came out.

r ──▶ Shape ──▶ s ──▶ ... ──▶ ns ──╮
r ─────────────────────────────▶ Reshape ──▶ rr ──▶ FC        becomes        r ──▶ FC
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from graph.errors import Findings, quoted
from graph.ir import Graph, Node, Role, Value
from graph.ssa.naming import without_name_order
from graph.transforms.boundary import ValueUses, boundary
from graph.transforms.dead_code import keep_nodes

#: Whether a node reads a value alike when it has another shape.
ShapePredicate = Callable[[Node], bool]


def accepts_none(node: Node) -> bool:
    """No node takes a value of another shape."""
    return False


def replace_by_identity(graph: Graph, nodes: Collection[int], accepts: ShapePredicate = accepts_none) -> Graph:
    """`graph` without a group of nodes whose one result is taken to be its one input.

    What comes from outside counts as parameters of the group, not as its input; parameters that only the
    group reads go with it. Raises BadGraph when the group is not isolated, when its result is an output of
    the graph, or when the input has another type and a reader does not accept it.
    """
    graph, findings = without_name_order(graph), Findings()
    pair = identity_pair(graph, nodes, ValueUses.of(graph), accepts, findings)
    findings.settle()
    return without_groups(graph, set(nodes), {pair[1]: pair[0]})


def without_groups(graph: Graph, nodes: Collection[int], instead: Mapping[int, int]) -> Graph:
    """`graph` without the nodes; `instead` says which value is read for a result. What only they read goes too."""
    stay = [n for n in range(len(graph.nodes)) if n not in nodes]
    read = {v for n in nodes for v in graph.nodes[n].reads}
    return keep_nodes(graph, stay, graph.outputs, instead=instead, unread=[v for v in graph.inputs if v not in read])


def identity_pair(
    graph: Graph, nodes: Collection[int], uses: ValueUses, accepts: ShapePredicate, findings: Findings
) -> tuple[int, int]:
    """(what goes in, what comes out) of the group; findings say why there is no such pair, and it is (-1, -1)."""
    inside = frozenset(nodes)
    border = boundary(graph, inside, uses)
    going_in = [v for v in border.inputs if graph.values[v].role is Role.ACTIVATION]
    if len(going_in) != 1 or len(border.outputs) != 1:
        named = ", ".join(quoted(graph.values[v].name) for v in (*going_in, *border.outputs)[:8])
        findings.add(
            "not_isolated",
            "nodes",
            f"{len(going_in)} inputs that are no parameters and {len(border.outputs)} outputs: {named}",
            "one input and one output",
            "name a group that only one value enters and one leaves",
        )
        return -1, -1
    source, result = going_in[0], border.outputs[0]
    if result in uses.results:
        findings.add(
            "not_isolated",
            "nodes",
            f"{quoted(graph.values[result].name)}, which is an output of the graph",
            "a result that only nodes read",
            "leave the group in, or choose another output",
        )
    one, other = graph.values[source], graph.values[result]
    if (one.type, one.nbytes) != (other.type, other.nbytes):
        for n in uses.readers[result]:
            if n not in inside and not accepts(graph.nodes[n]):
                findings.add(
                    "type_conflict",
                    f"nodes[{n}]",
                    f"{quoted(graph.nodes[n].name)} reads {quoted(other.name)}, {_size(other)}",
                    f"{_size(one)}, as {quoted(one.name)} has",
                    "leave the group in, or say that this op takes either",
                )
    return source, result


def _size(value: Value) -> str:
    return f"{value.type or f'{value.nbytes} bytes'}"
