"""Backward reachability of nodes."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from graph.ir.records import Graph, Node, producers


def nodes_computing(nodes: Sequence[Node], values: Iterable[int], given: Container[int] = ()) -> list[int]:
    """Positions of the nodes that `values` depend on by data, ascending; values in `given` need no node.

    `nodes` are in topological order. O(nodes + reads).
    """
    needed, found = set(values), list[int]()
    for n in reversed(range(len(nodes))):
        if any(v in needed and v not in given for v in nodes[n].writes):
            needed.update(nodes[n].reads)
            found.append(n)
    return found[::-1]


def reachable_nodes(
    roots: Iterable[int], reads: Sequence[Sequence[int]], producer: Sequence[int], after: Sequence[Sequence[int]]
) -> bytearray:
    """Per node 1 if it is in `roots` or an ancestor of one, by data (`reads`, `producer`) or by order (`after`).

    `producer` is the node that writes a value, or -1; value id -1 is absent. O(nodes + reads).
    """
    alive = bytearray(len(reads))
    pending = list(roots)
    while pending:
        n = pending.pop()
        if alive[n]:
            continue
        alive[n] = 1
        pending.extend([producer[v] for v in reads[n] if v >= 0 and producer[v] >= 0])
        pending.extend(after[n])
    return alive


def required_nodes(
    graph: Graph, values: Iterable[int], given: Collection[int] = (), nodes: Iterable[int] = ()
) -> list[int]:
    """Nodes, in order, that must run to compute `values` and `nodes` from the `given` values. O(nodes + reads).

    A node requires the producers of its operands and the nodes in its `after`.
    """
    producer = [-1 if v in given else n for v, n in enumerate(producers(graph))]
    roots = [*nodes, *(producer[v] for v in values if producer[v] >= 0)]
    alive = reachable_nodes(roots, [node.reads for node in graph.nodes], producer, [node.after for node in graph.nodes])
    return [n for n in range(len(graph.nodes)) if alive[n]]
