"""Copy fusion: removes copies from one device to another and back.

a ──▶ copy to B ──▶ b ──▶ copy to A ──▶ c1 ──▶ next1        becomes        a ──▶ next1
                    b ──▶ copy to A ──▶ c2 ──▶ next2                       a ──▶ next2
"""

from __future__ import annotations

from graph.ir import ABSENT, Graph, Node
from graph.transforms.boundary import ValueUses
from graph.transforms.dead_code import keep_nodes
from graph.transforms.device_placement import copy_route

Route = tuple[str | None, str | None]


def without_round_trips(graph: Graph) -> Graph:
    """`graph` without copies whose every reader copies back; readers of the copies back read the original.

    A copy is kept when it, or a copy back, is an output, or when a copy back is to another device than the original.
    Longer chains are removed too: nodes are visited in order, and the output of a fused pair counts as the original
    for the nodes after it. O(nodes + reads).
    """
    uses = ValueUses.of(graph)
    routes = {n: route for n, node in enumerate(graph.nodes) if (route := _route(node)) is not None}
    readers = [list(reading) for reading in uses.readers]
    replacement: dict[int, int] = {}
    removed: set[int] = set()
    for n, route in routes.items():
        node = graph.nodes[n]
        copy, returns = node.outputs[0], readers[node.outputs[0]]
        if n in removed or copy in uses.results or not returns:
            continue
        back = [graph.nodes[m].outputs[0] for m in returns if _undoes(routes.get(m), route)]
        if len(back) < len(returns) or not uses.results.isdisjoint(back):
            continue
        original = replacement.get(node.inputs[0], node.inputs[0])
        removed.update((n, *returns))
        for returned in back:
            replacement[returned] = original
            readers[original] += readers[returned]
    return keep_nodes(
        graph, [n for n in range(len(graph.nodes)) if n not in removed], graph.outputs, instead=replacement
    )


def _route(node: Node) -> Route | None:
    single = len(node.inputs) == 1 and len(node.outputs) == 1 and ABSENT not in (*node.inputs, *node.outputs)
    return copy_route(node) if single else None


def _undoes(second: Route | None, first: Route) -> bool:
    return second is not None and _same(second[0], first[1]) and _same(second[1], first[0])


def _same(one: str | None, other: str | None) -> bool:
    """True for equal devices; a family without a number, such as gpu, matches any device of it."""
    if one is None or other is None:
        return False
    family, _, number = one.partition(":")
    other_family, _, other_number = other.partition(":")
    return family == other_family and (number == other_number or not number or not other_number)
