"""Provenance of gradients: events while they are made, and marks on the nodes that finish one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from graph.autodiff.gradients.accumulation import SYMBOLIC_ZERO, Cotangent, IndexedSlices
from graph.autodiff.gradients.events import FINALISES, GradientCallback, GradientEvent
from graph.builder.builder import Builder
from graph.ir import Graph, Node


class ProvenanceRecorder:
    """Tells callbacks of every new node, and of every gradient that is complete. Silent without callbacks."""

    def __init__(self, builder: Builder, graph: Graph, callbacks: Sequence[GradientCallback]):
        self.builder, self.graph, self.callbacks = builder, graph, tuple(callbacks)
        self.told = len(graph.nodes)  # nodes before this one are known
        self.parts: dict[int, int] = {}  # gradient -> forward value, of nodes not told yet
        self.writer: dict[int, str] = {}  # value -> backward node, of nodes told

    def contribution(self, v: int, gradient: Cotangent) -> None:
        """`gradient` is a part of that of `v`."""
        if self.callbacks:
            for part in _ids(gradient):
                self.parts[part] = v

    def added(self) -> None:
        """Tell of the nodes made since."""
        if self.callbacks:
            self._tell_nodes()
            self.parts.clear()

    def summed(self, v: int, gradient: Cotangent) -> None:
        """Tell of the nodes that sum the parts of the gradient of `v`."""
        if self.callbacks:
            self.contribution(v, gradient)
            self._tell_nodes()
            self.parts.clear()

    def finalised(self, v: int, gradient: Cotangent) -> None:
        """Tell that nothing more is added to the gradient of `v`."""
        if not self.callbacks:
            return
        self._tell_nodes()
        last = _ids(gradient)[-1]
        event = GradientEvent(
            "finalised",
            self.writer.get(last, ""),
            value=self.graph.values[v].name,
            gradient=self.builder.values[last].name,
        )
        for callback in self.callbacks:
            callback(event)

    def _tell_nodes(self) -> None:
        values = self.builder.values
        for node in self.builder.nodes[self.told :]:
            self.writer.update(dict.fromkeys(node.writes, node.name))
            event = GradientEvent(
                "added",
                node.name,
                node.op,
                str(node.annotations.get("gradient_of", "")),
                {values[v].name: values[self.parts[v]].name for v in node.writes if v in self.parts},
            )
            for callback in self.callbacks:
                callback(event)
        self.told = len(self.builder.nodes)

    def mark(self, finished: Mapping[int, Cotangent], complete: Mapping[int, Cotangent], wanted: Iterable[int]) -> None:
        """Annotate the node that writes the last of each wanted value's gradient with the value's name."""
        if self.callbacks:
            self._tell_nodes()
        last: dict[int, list[str]] = {}
        for v in dict.fromkeys(wanted):
            if v in finished:
                gradient = complete.get(v, finished[v])
                last.setdefault(_ids(finished[v] if gradient == SYMBOLIC_ZERO else gradient)[-1], []).append(
                    self.graph.values[v].name
                )
        nodes = self.builder.nodes
        for n in range(len(self.graph.nodes), len(nodes)):
            for v in nodes[n].outputs:
                if v in last:
                    nodes[n] = _finalising(nodes[n], last[v])


def _finalising(node: Node, names: Sequence[str]) -> Node:
    """The node with these names added to those whose gradient it finishes."""
    annotations = MappingProxyType({**node.annotations, FINALISES: [*node.annotations.get(FINALISES, ()), *names]})
    return Node(
        node.name,
        node.op,
        node.inputs,
        node.outputs,
        node.attributes,
        node.phase,
        node.after,
        node.cost,
        node.effect,
        node.stream,
        node.views,
        node.in_place,
        node.recompute,
        node.heavy,
        node.gradient_reads,
        node.bodies,
        annotations,
    )


def _ids(gradient: Cotangent) -> tuple[int, ...]:
    return (gradient.indices, gradient.values) if isinstance(gradient, IndexedSlices) else (gradient,)
