"""Removal of reshapes whose target shape is computed from their data and whose readers flatten the data anyway.

data ──▶ Shape ──▶ Slice ──▶ Concat ──▶ target ──╮
  ╰──────────────────────────────────────────▶ Reshape ──▶ FC        the group: Shape, Slice, Concat, Reshape

A dense op that flattens its data computes the same from the value before such a group and the value after it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graph.errors import Findings
from graph.ir import ABSENT, Graph, Node, producers
from graph.transforms.boundary import ValueUses
from graph.transforms.device_placement import base_op
from graph.transforms.remove_group import identity_pair, without_groups

RESHAPE = "Reshape"
#: Ops that flatten their data to a matrix.
FLATTENING = frozenset({"FC", "FullyConnected", "Int8FC"})


def reshape_groups(graph: Graph) -> list[list[int]]:
    """Per Reshape: the nodes on any path from its data to its target shape, then the Reshape.

    Only the Reshape when the target does not depend on the data. Linear in the nodes between the two.
    """
    producer = producers(graph)
    return [
        [*_between(graph, producer, node.inputs[0], node.inputs[1]), n]
        for n, node in enumerate(graph.nodes)
        if base_op(node) == RESHAPE and len(node.inputs) == 2 and ABSENT not in node.inputs
    ]


def _between(graph: Graph, producer: Sequence[int], source: int, target: int) -> list[int]:
    """Nodes on any path from value `source` to value `target`."""
    first = producer[source]  # every node of a path comes after it
    seen: set[int] = set()
    pending = [producer[target]]
    while pending:
        n = pending.pop()
        if n > first and n not in seen:
            seen.add(n)
            pending.extend(producer[v] for v in graph.nodes[n].reads if v != source)
    dependent, between = {source}, []
    for n in sorted(seen):
        node = graph.nodes[n]
        if not dependent.isdisjoint(node.reads):
            dependent.update(node.writes)
            between.append(n)
    return between


def without_reshapes(graph: Graph, readers: Collection[str] = FLATTENING) -> Graph:
    """`graph` without the reshape groups whose results are read by ops in `readers` only.

    A group with more than one activation as input, or more than one output, is kept.
    """
    uses = ValueUses.of(graph)

    def accepts(node: Node) -> bool:
        return base_op(node) in readers

    removed: set[int] = set()
    instead: dict[int, int] = {}
    for group in reshape_groups(graph):
        result = graph.nodes[group[-1]].outputs[0]
        reading = uses.readers[result] if result != ABSENT else []
        if not reading or not all(accepts(graph.nodes[n]) for n in reading) or removed.intersection(group):
            continue
        refusals = Findings()
        source, leaving = identity_pair(graph, group, uses, accepts, refusals)
        if not refusals:
            removed.update(group)
            instead[leaving] = instead.get(source, source)
    return without_groups(graph, removed, instead)
