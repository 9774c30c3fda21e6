"""Chunks of a loss one after the other: each goes back as soon as it came forward, in the forward part of the step.

    forward    chunk 0 ──▶ its way back ──▶ chunk 1 ──▶ its way back ──▶ ... ──▶ loss
    backward   the rest

The way back of a chunk may stand there because the gradient of a row's loss needs no scores of other rows. What all
chunks read, such as the weights of the product, gets a running sum of gradients instead of one sum of all parts.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from graph.analysis.effects import effect_of
from graph.autodiff.gradients.events import FINALISES
from graph.ir import EMPTY, Effect, Graph, Node, Phase, Value, consumers, producers
from graph.ir.names import unique_name
from graph.ssa.naming import without_name_order
from graph.training.chunked_loss import CHUNK_ANNOTATION
from graph.transforms.dead_code import keep_nodes


def interleave_chunks(graph: Graph) -> Graph:
    """A training step of `with_chunked_loss` with its chunks in turn; `graph` itself where one needs another's scores.

    O(nodes + reads).
    """
    if not any(CHUNK_ANNOTATION in node.annotations and node.phase is Phase.BACKWARD for node in graph.nodes):
        return graph
    graph = without_name_order(graph)
    summed, gone = _with_running_sums(graph)
    order, early = _ChunkOrder(summed, gone).found()
    if not order:
        return graph
    nodes = [replace(node, phase=Phase.FORWARD) if n in early else node for n, node in enumerate(summed.nodes)]
    return keep_nodes(replace(summed, nodes=tuple(nodes)), order, graph.outputs)


def _with_running_sums(graph: Graph) -> tuple[Graph, set[int]]:
    """Sums of parts from several chunks as additions chunk after chunk, new ones last; and nodes to leave out."""
    producer, nodes, values = producers(graph), list(graph.nodes), list(graph.values)
    names, node_names = {value.name for value in values}, {node.name for node in nodes}
    gone = set[int]()
    for n, (leaves, within) in _sums(graph, producer).items():
        made_by = [
            (nodes[producer[v]].annotations.get(CHUNK_ANNOTATION) if producer[v] >= 0 else None, v) for v in leaves
        ]
        ours = sorted((chunk, v) for chunk, v in made_by if chunk is not None)
        others = [v for chunk, v in made_by if chunk is None]
        if len({chunk for chunk, _ in ours}) < 2:
            continue
        gone.update(within)
        root = nodes[n]
        plain = {key: note for key, note in root.annotations.items() if key != FINALISES}
        value, total = graph.values[root.outputs[0]], ours[0][1]
        for chunk, v in ours[1:]:
            if v == ours[-1][1] and not others:
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
    return replace(graph, values=tuple(values), nodes=tuple(nodes)), gone


def _sums(graph: Graph, producer: list[int]) -> dict[int, tuple[list[int], list[int]]]:
    """Backward node that adds gradients up -> (values it adds, through nodes only it reads; these nodes)."""
    readers = consumers(graph)
    outputs = {*graph.outputs, *(gradient for _, gradient in graph.gradients)}
    found: dict[int, tuple[list[int], list[int]]] = {}
    for n, node in enumerate(graph.nodes):
        types = {graph.values[v].type for v in (*node.inputs, *node.writes)}
        if node.op not in ("Add", "Sum") or node.phase is not Phase.BACKWARD or CHUNK_ANNOTATION in node.annotations:
            continue
        if len(types) > 1 or None in types or len(set(node.inputs)) < len(node.inputs):
            continue
        leaves, within = list[int](), list[int]()
        for v in node.inputs:
            if producer[v] in found and readers[v] == [n] and v not in outputs:
                more, nodes = found.pop(producer[v])
                leaves += more
                within += [producer[v], *nodes]
            else:
                leaves.append(v)
        found[n] = leaves, within
    return found


class _ChunkOrder:
    """The nodes put in order: the forward part with the chunks' way back, then the rest."""

    def __init__(self, graph: Graph, gone: set[int]):
        self.graph, self.gone = graph, gone
        producer = [-1] * len(graph.values)
        for n, node in enumerate(graph.nodes):
            if n not in gone:
                for v in node.writes:
                    producer[v] = n
        self.before = [[producer[v] for v in node.reads if producer[v] >= 0] + list(node.after) for node in graph.nodes]
        self.chunk = [int(node.annotations.get(CHUNK_ANNOTATION, -1)) for node in graph.nodes]
        self.order: list[int] = []
        self.placed: set[int] = set()

    def found(self) -> tuple[list[int], set[int]]:
        """(order, backward nodes that stand in its forward part); no order where a chunk needs another's scores."""
        nodes = self.graph.nodes
        ahead = [n for n, node in enumerate(nodes) if n not in self.gone and node.phase is Phase.FORWARD]
        last = {self.chunk[n]: n for n in ahead}
        back: dict[int, list[int]] = {}
        for n, node in enumerate(nodes):
            if n not in self.gone and node.phase is Phase.BACKWARD and self.chunk[n] >= 0:
                back.setdefault(self.chunk[n], []).append(n)
        early = set[int]()
        for n in ahead:
            self._place(n)
            if self.chunk[n] >= 0 and last[self.chunk[n]] == n:
                before = len(self.order)
                if not all(self._place(m, alone=True) for m in back.get(self.chunk[n], ())):
                    return [], early
                early.update(self.order[before:])
        for n in range(len(nodes)):
            if n not in self.gone:
                self._place(n)
        return self.order, early

    def _place(self, node: int, alone: bool = False) -> bool:
        """Put the node behind what it needs; False where that is a chunk still to come, or something with an effect."""
        waiting = [node]
        while waiting:
            n = waiting[-1]
            missing = [m for m in self.before[n] if m not in self.placed and m not in self.gone]
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
