"""Provenance of gradients: events for callbacks, and annotations on the nodes that complete a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from graph.autodiff.gradients.accumulation import SYMBOLIC_ZERO, Cotangent, IndexedSlices
from graph.autodiff.gradients.events import FINALISES, GradientCallback, GradientEvent
from graph.builder.builder import Builder
from graph.ir import Graph, Node


class ProvenanceRecorder:
    """Sends callbacks an event for every new node and every complete gradient; does nothing without callbacks."""

    def __init__(self, builder: Builder, graph: Graph, callbacks: Sequence[GradientCallback]):
        self.builder, self.graph, self.callbacks = builder, graph, tuple(callbacks)
        self.reported = len(graph.nodes)  # number of nodes that need no event any more
        self.parts: dict[int, int] = {}  # gradient -> forward value, for nodes not reported yet
        self.writer: dict[int, str] = {}  # value -> backward node, for reported nodes

    def contribution(self, v: int, gradient: Cotangent) -> None:
        """Note that `gradient` is a contribution to the gradient of `v`."""
        if self.callbacks:
            for part in _ids(gradient):
                self.parts[part] = v

    def added(self) -> None:
        """Report the nodes added since the last report."""
        if self.callbacks:
            self._report_nodes()
            self.parts.clear()

    def summed(self, v: int, gradient: Cotangent) -> None:
        """Report the nodes that sum the contributions to the gradient of `v`."""
        if self.callbacks:
            self.contribution(v, gradient)
            self._report_nodes()
            self.parts.clear()

    def finalised(self, v: int, gradient: Cotangent) -> None:
        """Report that the gradient of `v` is complete."""
        if not self.callbacks:
            return
        self._report_nodes()
        last = _ids(gradient)[-1]
        event = GradientEvent(
            "finalised",
            self.writer.get(last, ""),
            value=self.graph.values[v].name,
            gradient=self.builder.values[last].name,
        )
        for callback in self.callbacks:
            callback(event)

    def _report_nodes(self) -> None:
        values = self.builder.values
        for node in self.builder.nodes[self.reported :]:
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
        self.reported = len(self.builder.nodes)

    def mark(self, finished: Mapping[int, Cotangent], complete: Mapping[int, Cotangent], wanted: Iterable[int]) -> None:
        """Annotate the node that completes the gradient of each wanted value with the name of that value."""
        if self.callbacks:
            self._report_nodes()
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
    """The node with `names` appended to its annotation FINALISES."""
    annotations = MappingProxyType({**node.annotations, FINALISES: [*node.annotations.get(FINALISES, ()), *names]})
    return replace(node, annotations=annotations)


def _ids(gradient: Cotangent) -> tuple[int, ...]:
    return (gradient.indices, gradient.values) if isinstance(gradient, IndexedSlices) else (gradient,)
