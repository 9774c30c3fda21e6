"""Boundary of a set of nodes: its input and output values, e.g. the interface of a recomputed segment.

A: x ──▶ y    B: y, w ──▶ z    C: z ──▶ y    D: y, z ──▶ u        boundary of B, C: y@1, w ──▶ z, y@2
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from graph.ir import UNKNOWN_COST, Graph, consumers


@dataclass(frozen=True, slots=True)
class SubgraphBoundary:
    """Values that cross the boundary, as value ids."""

    inputs: tuple[int, ...]  # read but not written by the nodes; in order of first read
    outputs: tuple[int, ...]  # written by the nodes, and an output of the graph or read elsewhere; in order of writing


@dataclass(frozen=True, slots=True)
class ValueUses:
    """Uses of the values of a graph."""

    readers: list[list[int]]  # per value: ids of the nodes that read it
    results: frozenset[int]  # outputs of the graph, and gradients

    @classmethod
    def of(cls, graph: Graph) -> ValueUses:
        return cls(consumers(graph), frozenset((*graph.outputs, *(gradient for _, gradient in graph.gradients))))

    def is_only_read_by(self, v: int, n: int) -> bool:
        """True if node `n` alone uses the value, once."""
        return self.readers[v] == [n] and v not in self.results


def replaceable_nodes(graph: Graph) -> frozenset[int]:
    """Nodes without `after` edges or a declared cost, which their replacement would lose."""
    tied = {m for node in graph.nodes for m in node.after}
    nodes = enumerate(graph.nodes)
    return frozenset(n for n, node in nodes if not node.after and n not in tied and node.cost is UNKNOWN_COST)


def boundary(graph: Graph, nodes: Collection[int], uses: ValueUses | None = None) -> SubgraphBoundary:
    """The boundary of a set of nodes. Linear in the operands of the nodes and the readers of their outputs."""
    uses = uses or ValueUses.of(graph)
    inside = set(nodes)
    ordered = sorted(inside)
    written = dict.fromkeys(v for n in ordered for v in graph.nodes[n].writes)
    read = dict.fromkeys(v for n in ordered for v in graph.nodes[n].reads)
    leaving = (v for v in written if v in uses.results or not inside.issuperset(uses.readers[v]))
    return SubgraphBoundary(tuple(v for v in read if v not in written), tuple(leaving))
