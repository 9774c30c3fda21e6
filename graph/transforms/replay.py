"""Replay: a graph rewritten to a given execution order, with recomputed nodes.

replay(graph, [0, 1, 2, 1, 3])     # node 1 runs twice; node 3 reads its second copy
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from graph.errors import BadGraph
from graph.ir import ABSENT, Body, Graph, Node, Phase, Value
from graph.ir.names import reserve_name
from graph.ir.renumber import remap_captures


def replay(graph: Graph, order: Sequence[int], returned: Mapping[int, int] | None = None) -> Graph:
    """`graph` with its nodes in the order `order`: every node at least once, repeats are recomputations.

    Every read binds to the latest earlier copy. Run k > 0 of node `n` is named `n/k`; each run has
    `annotations.origin = [n, k]`. A repeat gets the phase that has been reached. An output of the graph is its last
    copy, or with `returned` the copy written at that position of `order`; that copy keeps the name of the output.
    Raises BadGraph when a node is missing or a read has no earlier write. O(nodes + reads).
    """
    return _Replay(graph, order, returned or {}).graph()


class _Replay:
    """State of one replay: the latest copy of each value, and the rewritten nodes and values so far."""

    def __init__(self, graph: Graph, order: Sequence[int], returned: Mapping[int, int]):
        self.source, self.order, self.returned = graph, order, returned
        written = {v for node in graph.nodes for v in node.writes}
        self.latest = [ABSENT if v in written else v for v in range(len(graph.values))]
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.first_run = [ABSENT] * len(graph.nodes)
        self.runs = [0] * len(graph.nodes)
        self.total = [0] * len(graph.nodes)
        self.copies = [0] * len(graph.values)  # written so far; a value may have several writers
        for n in order:
            self.total[n] += 1
        self.outputs = dict.fromkeys(graph.outputs, ABSENT)  # output of the source -> the copy that is the output
        self.value_names = {value.name for value in graph.values}
        self.node_names = {node.name for node in graph.nodes}
        self.phase = Phase.FORWARD
        # Values without a writer come first, in their order.
        for v, value in enumerate(graph.values):
            if v not in written:
                self.latest[v] = len(self.values)
                self.values.append(value)

    def graph(self) -> Graph:
        source = self.source
        missing = [node.name for node, total in zip(source.nodes, self.total, strict=True) if not total]
        if missing:
            raise BadGraph.one(
                "node_left_out",
                "order",
                f"no run of {missing[0]} ({len(missing)} nodes missing)",
                "every node at least once",
                "add the missing nodes or prune them from the graph first",
            )
        for n in self.order:
            self._run(n)
        return Graph(
            source.name,
            tuple(self.values),
            tuple(self.nodes),
            tuple(self._final(v) for v in source.outputs),
            tuple(self.latest[v] for v in source.inputs),
            source.opset,
            source.order_is_given,
            tuple((self._final(p), self._final(g)) for p, g in source.gradients),
            source.annotations,
            source.gradient_rules,
        )

    def _final(self, v: int) -> int:
        """The copy of `v` that is an output or gradient of the rewritten graph."""
        copy = self.outputs.get(v, ABSENT)
        return self.latest[v] if copy == ABSENT else copy

    def _run(self, n: int) -> None:
        node, run, latest = self.source.nodes[n], self.runs[n], self.latest
        self.runs[n] += 1
        if node.phase > self.phase:
            self.phase = node.phase
        inputs = tuple([ABSENT if v == ABSENT else latest[v] for v in node.inputs])
        if ABSENT in inputs:
            self._check_written(node, node.inputs)
        bodies = node.bodies and {name: self._captured(node, body) for name, body in node.bodies.items()}
        is_last = self.runs[n] == self.total[n]
        outputs = tuple([ABSENT if v == ABSENT else self._write(v, is_last) for v in node.outputs])
        reads, annotations = node.gradient_reads, {**node.annotations, "origin": [node.name, run]}
        # Random streams in bodies derive from the node name: a recomputed node needs the stream of its first run.
        stream = node.stream or (node.name if run and bodies else None)
        if run == 0:
            self.first_run[n] = len(self.nodes)
            name, phase, after = node.name, node.phase, tuple([self.first_run[a] for a in node.after])
        else:
            name, phase, after = reserve_name(f"{node.name}/{run}", self.node_names, "/copy"), self.phase, ()
        self.nodes.append(
            Node(
                name,
                node.op,
                inputs,
                outputs,
                node.attributes,
                phase,
                after,
                node.cost,
                node.effect,
                stream,
                node.views,
                node.in_place,
                node.recompute,
                node.heavy,
                None if reads is None else tuple([latest[v] for v in reads]),
                bodies,
                MappingProxyType(annotations),
                node.takeover,
            )
        )

    def _check_written(self, node: Node, reads: Iterable[int]) -> None:
        """Raise BadGraph when one of these values has no copy yet."""
        for v in reads:
            if v != ABSENT and self.latest[v] == ABSENT:
                raise BadGraph.one(
                    "undefined_value",
                    f"order[{len(self.nodes)}]",
                    f"{node.name} reads {self.source.values[v].name} before its first write",
                    "its producer earlier in the order",
                    "move the producer before it",
                )

    def _captured(self, node: Node, body: Body) -> Body:
        self._check_written(node, [outer for _, outer in body.captures])
        return remap_captures(body, self.latest.__getitem__)

    def _write(self, v: int, is_last: bool) -> int:
        """Id of a new copy of value `v`; it becomes the latest copy."""
        value, copy, number = self.source.values[v], len(self.values), self.copies[v]
        self.copies[v] += 1
        if v not in self.outputs:
            keeps_name = number == 0
        else:
            keeps_name = self.returned[v] == len(self.nodes) if v in self.returned else is_last
            if keeps_name:
                self.outputs[v] = copy
        if not keeps_name:
            name = reserve_name(f"{value.name}/{number}", self.value_names, "/copy")
            value = Value(
                name,
                value.type,
                value.role,
                value.bytes,
                value.fixed_bytes,
                value.data,
                value.annotations,
                value.stop_gradient,
            )
        self.latest[v] = copy
        self.values.append(value)
        return copy
