"""Chunk interleaving: the backward pass of each loss chunk runs directly after its forward pass.

    forward    chunk 0 ──▶ its backward ──▶ chunk 1 ──▶ its backward ──▶ ... ──▶ loss
    backward   the rest

This order is legal because the gradient of a row's loss does not depend on scores of other rows. The gradient of a
value that all chunks read, such as the weights of the product, becomes a running sum instead of one Sum.
"""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from graph.analysis.effects import effect_of
from graph.autodiff.gradients.events import FINALISES
from graph.ir import EMPTY, Effect, Graph, Node, Phase, Value, consumers, producers
from graph.ir.names import unique_name
from graph.training.chunked_loss import CHUNK_ANNOTATION
from graph.transforms.dead_code import keep_nodes


def interleave_chunks(graph: Graph) -> Graph:
    """The training step with its loss chunks interleaved; `graph` itself when a chunk depends on another chunk.

    `graph` is a training step of a forward graph from `with_chunked_loss`. O(nodes + reads).
    """
    if not any(CHUNK_ANNOTATION in node.annotations and node.phase is Phase.BACKWARD for node in graph.nodes):
        return graph
    summed, removed = _with_running_sums(graph)
    order, early = _ChunkOrder(summed, removed).schedule()
    if not order:
        return graph
    nodes = [replace(node, phase=Phase.FORWARD) if n in early else node for n, node in enumerate(summed.nodes)]
    return keep_nodes(replace(summed, nodes=tuple(nodes)), order, graph.outputs)


def _with_running_sums(graph: Graph) -> tuple[Graph, set[int]]:
    """(graph with each sum over chunks as a chain of additions, new nodes last; nodes to remove)."""
    producer, nodes, values = producers(graph), list(graph.nodes), list(graph.values)
    names, node_names = {value.name for value in values}, {node.name for node in nodes}
    removed = set[int]()
    for n, (leaves, inner) in _sums(graph, producer).items():
        chunk_of_leaf = [
            (nodes[producer[v]].annotations.get(CHUNK_ANNOTATION) if producer[v] >= 0 else None, v) for v in leaves
        ]
        chunked = sorted((chunk, v) for chunk, v in chunk_of_leaf if chunk is not None)
        others = [v for chunk, v in chunk_of_leaf if chunk is None]
        if len({chunk for chunk, _ in chunked}) < 2:
            continue
        removed.update(inner)
        root = nodes[n]
        plain = {key: note for key, note in root.annotations.items() if key != FINALISES}
        value, total = graph.values[root.outputs[0]], chunked[0][1]
        for chunk, v in chunked[1:]:
            if v == chunked[-1][1] and not others:
                notes = MappingProxyType({**root.annotations, CHUNK_ANNOTATION: chunk})
                nodes[n] = replace(root, op="Add", inputs=(total, v), annotations=notes)
                break
            values.append(Value(unique_name(value.name, names), value.type))
            names.add(values[-1].name)
            node = Node(
                unique_name(root.name, node_names), "Add", (total, v), (len(values) - 1,), EMPTY, Phase.BACKWARD
            )
            node_names.add(node.name)
            nodes.append(replace(node, annotations=MappingProxyType({**plain, CHUNK_ANNOTATION: chunk})))
            total = len(values) - 1
        else:
            nodes[n] = replace(root, op="Add" if len(others) == 1 else "Sum", inputs=(total, *others))
    return replace(graph, values=tuple(values), nodes=tuple(nodes)), removed


def _sums(graph: Graph, producer: list[int]) -> dict[int, tuple[list[int], list[int]]]:
    """Root of a tree of backward additions -> (leaves of the tree, its inner nodes)."""
    readers = consumers(graph)
    outputs = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
    trees: dict[int, tuple[list[int], list[int]]] = {}
    for n, node in enumerate(graph.nodes):
        types = {graph.values[v].type for v in (*node.inputs, *node.writes)}
        if node.op not in ("Add", "Sum") or node.phase is not Phase.BACKWARD or CHUNK_ANNOTATION in node.annotations:
            continue
        if len(types) > 1 or None in types or len(set(node.inputs)) < len(node.inputs):
            continue
        leaves, inner = list[int](), list[int]()
        for v in node.inputs:
            if producer[v] in trees and readers[v] == [n] and v not in outputs:
                more, nodes = trees.pop(producer[v])
                leaves += more
                inner += [producer[v], *nodes]
            else:
                leaves.append(v)
        trees[n] = leaves, inner
    return trees


class _ChunkOrder:
    """Schedule of the nodes: the forward pass with the backward passes of the chunks, then the rest."""

    def __init__(self, graph: Graph, removed: set[int]):
        self.graph, self.removed = graph, removed
        producer = [-1] * len(graph.values)
        for n, node in enumerate(graph.nodes):
            if n not in removed:
                for v in node.writes:
                    producer[v] = n
        self.before = [[producer[v] for v in node.reads if producer[v] >= 0] + list(node.after) for node in graph.nodes]
        self.chunk = [int(node.annotations.get(CHUNK_ANNOTATION, -1)) for node in graph.nodes]
        self.order: list[int] = []
        self.placed: set[int] = set()

    def schedule(self) -> tuple[list[int], set[int]]:
        """(order, backward nodes moved to the forward pass); the order is empty when a chunk depends on another."""
        nodes = self.graph.nodes
        forward = [n for n, node in enumerate(nodes) if n not in self.removed and node.phase is Phase.FORWARD]
        last = {self.chunk[n]: n for n in forward}
        backward: dict[int, list[int]] = {}
        for n, node in enumerate(nodes):
            if n not in self.removed and node.phase is Phase.BACKWARD and self.chunk[n] >= 0:
                backward.setdefault(self.chunk[n], []).append(n)
        early = set[int]()
        for n in forward:
            self._place(n)
            if self.chunk[n] >= 0 and last[self.chunk[n]] == n:
                before = len(self.order)
                if not all(self._place(m, alone=True) for m in backward.get(self.chunk[n], ())):
                    return [], early
                early.update(self.order[before:])
        for n in range(len(nodes)):
            if n not in self.removed:
                self._place(n)
        return self.order, early

    def _place(self, node: int, alone: bool = False) -> bool:
        """Schedule the node after its dependencies; False with `alone` when one is a later chunk or has an effect."""
        waiting = [node]
        while waiting:
            n = waiting[-1]
            missing = [m for m in self.before[n] if m not in self.placed and m not in self.removed]
            if n in self.placed:
                waiting.pop()
            elif alone and not self._may_stand_early(n):
                return False
            elif missing:
                waiting += missing
            else:
                self.placed.add(n)
                self.order.append(waiting.pop())
        return True

    def _may_stand_early(self, n: int) -> bool:
        node = self.graph.nodes[n]
        is_chunk = node.phase is Phase.FORWARD and self.chunk[n] >= 0
        return not is_chunk and node.phase is not Phase.UPDATE and effect_of(self.graph, node) is Effect.PURE
