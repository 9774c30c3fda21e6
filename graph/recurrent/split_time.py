"""Splitting of a recurrent net along time into consecutive parts, so that whole parts can be recomputed.

    F ═══ states ═══▶                 F/0 ── h ──▶ F/1 ── h ──▶ F/2           h: initial state of each part
    ╰── stacks ──▶ G                  ╰ stack 0    ╰ stack 1    ╰ stack 2     stacks: one per part
                                      G/0 ◀─ dh ── G/1 ◀─ dh ── G/2

Gradients are carried from part to part like states, so results are bit-identical. Stacks with other readers
are concatenated from the parts; the parts of G read those of F directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from graph.ir import ABSENT, Graph, Node, Phase, Role, TensorType, Value, consumers
from graph.ir.names import reserve_name
from graph.ir.renumber import restrict_values
from graph.loop_remat import BodyPair
from graph.loop_remat.joint_body import is_random
from graph.ops.control_flow import LoopInterface, trip_count
from graph.recurrent.tables import backward_scans, scan_pair
from graph.validate.check import check

#: Largest number of parts of a net; each part is a task for the planners.
MAX_PARTS = 128


def split_over_time(graph: Graph, most: int = MAX_PARTS) -> Graph:
    """The differentiated `graph` with every net cut into at most `most` parts of equal length.

    Nets without a backward Scan, with random ops, or with sequences along other axes or in reverse order
    are not cut.
    """
    for name in [node.name for node in graph.nodes if node.op == "Scan"]:
        number = {node.name: n for n, node in enumerate(graph.nodes)}
        back = backward_scans(graph).get(name)
        if back is None or not _can_be_cut(graph, number[name], back):
            continue
        steps = trip_count(graph.values, graph.nodes[number[name]]).bound or 0
        length = -(-steps // most)
        if length < steps:
            graph = split_pair(graph, scan_pair(graph, number[name], back), length)
    return graph


def split_pair(graph: Graph, pair: BodyPair, length: int) -> Graph:
    """`graph` with the two Scans of the pair cut into parts of `length` steps, the last part possibly shorter."""
    result = _Cutting(graph, pair, length).result()
    check(result)
    return result


def _can_be_cut(graph: Graph, forward: int, backward: int) -> bool:
    """True if both run along axis 0, forward and backward in time, without random ops."""
    out, back = graph.nodes[forward], graph.nodes[backward]
    if back.op != "Scan" or is_random(out) or is_random(back) or out.in_place or back.in_place:
        return False
    for node, way in ((out, 0), (back, 1)):
        trips = LoopInterface.of(node)
        if any(layout != (0, way) for layout in (*trips.input_layouts(), *trips.output_layouts())):
            return False
    return trip_count(graph.values, out) == trip_count(graph.values, back)


@dataclass(slots=True)
class _Part:
    """Steps `begin` .. `end` - 1, and by stack of the forward node the part's own stack."""

    begin: int
    end: int
    name: str = ""  # name of the forward part
    stacks: dict[int, int] = field(default_factory=dict)


class _Cutting:
    """State of the splitting of one pair."""

    def __init__(self, graph: Graph, pair: BodyPair, length: int):
        self.graph, self.pair = graph, pair
        self.steps = trip_count(graph.values, graph.nodes[pair.forward]).bound or 0
        bounds = [*range(0, self.steps, length), self.steps]
        self.parts = [_Part(begin, end) for begin, end in pairwise(bounds)]
        self.values = list(graph.values)
        self.names = {value.name for value in graph.values} | {node.name for node in graph.nodes}
        self.readers = consumers(graph)

    def result(self) -> Graph:
        place: list[int] = []  # node of the old graph -> its last node in the result
        nodes: list[Node] = []
        pieces = {self.pair.forward: self._forward, self.pair.backward: self._backward}
        for n, node in enumerate(self.graph.nodes):
            nodes += pieces[n]() if n in pieces else [node]
            place.append(len(nodes) - 1)
        nodes = [replace(node, after=tuple(place[a] for a in node.after)) if node.after else node for node in nodes]
        return replace(self._dense(nodes), annotations=self.graph.annotations)

    def _forward(self) -> list[Node]:
        node = self.graph.nodes[self.pair.forward]
        trips = LoopInterface.of(node)
        made: list[Node] = []
        states = list(node.inputs[: trips.states])
        stacks = node.outputs[trips.states :]
        for i, part in enumerate(self.parts):
            sequences = [self._rows(v, part, f"{node.name}/{i}", node.phase, made) for v in scanned_values(trips)]
            part.stacks = {v: self._like(v, f"{node.name}/{i}", part) for v in stacks if v != ABSENT}
            outputs = self._states(node, trips, i, i == len(self.parts) - 1)
            outputs += [ABSENT if v == ABSENT else part.stacks[v] for v in stacks]
            made.append(self._piece(node, i, [*states, *sequences], outputs))
            part.name = made[-1].name
            states = outputs[: trips.states]
        joined = [v for v in stacks if v != ABSENT and self._is_read_whole(v)]
        made += [self._joined(v, [part.stacks[v] for part in self.parts], node) for v in joined]
        return made

    def _is_read_whole(self, v: int) -> bool:
        return self.readers[v] != [self.pair.backward] or v in self.graph.outputs

    def _backward(self) -> list[Node]:
        node = self.graph.nodes[self.pair.backward]
        trips = LoopInterface.of(node)
        made: list[Node] = []
        states = list(node.inputs[: trips.states])
        parts: dict[int, list[int]] = {v: [] for v in node.outputs[trips.states :] if v != ABSENT}
        for i, part in reversed(list(enumerate(self.parts))):
            sequences = [
                part.stacks[v] if v in part.stacks else self._rows(v, part, f"{node.name}/{i}", node.phase, made)
                for v in scanned_values(trips)
            ]
            outputs = self._states(node, trips, i, i == 0)
            for v in node.outputs[trips.states :]:
                outputs.append(ABSENT if v == ABSENT else self._like(v, f"{node.name}/{i}", part))
                if v != ABSENT:
                    parts[v].append(outputs[-1])
            piece = self._piece(node, i, [*states, *sequences], outputs)
            annotations = MappingProxyType({**piece.annotations, "gradient_of": part.name})
            made.append(replace(piece, annotations=annotations))
            states = outputs[: trips.states]
        made += [self._joined(v, rows[::-1], node) for v, rows in parts.items()]
        return made

    def _states(self, node: Node, trips: LoopInterface, i: int, last: bool) -> list[int]:
        """Final states of a part; those of the last part are the node's own."""
        if last:
            return [*node.outputs[: trips.states], *[ABSENT] * (trips.states - len(node.outputs))]
        inner = trips.body.graph.values
        return [
            self._value(f"{node.name}/{i}/{inner[trips.state_out(k)].name}", self.graph.values[node.inputs[k]].type)
            for k in range(trips.states)
        ]

    def _piece(self, node: Node, i: int, inputs: Sequence[int], outputs: Sequence[int]) -> Node:
        name = reserve_name(f"{node.name}/{i}", self.names, "/part")
        return replace(node, name=name, inputs=tuple(inputs), outputs=tuple(outputs), after=node.after)

    def _rows(self, v: int, part: _Part, prefix: str, phase: Phase, made: list[Node]) -> int:
        """The steps of a part of a sequence."""
        value = self.graph.values[v]
        if value.data is not None:
            rows = np.ascontiguousarray(value.data[part.begin : part.end])
            return self._value(f"{prefix}/{value.name}", _cut_type(value, part), Role.CONSTANT, rows)
        ends = [
            self._value(f"{prefix}/{word}", TensorType("int64", (1,)), Role.CONSTANT, np.array([number], np.int64))
            for word, number in (("begin", part.begin), ("end", part.end), ("axis", 0))
        ]
        name = reserve_name(f"{prefix}/{value.name}", self.names, "/part")
        out = self._value(name, _cut_type(value, part))
        made.append(Node(name, "Slice", (v, *ends), (out,), phase=phase))
        return out

    def _joined(self, v: int, rows: Sequence[int], node: Node) -> Node:
        """Concatenate the parts of a value in time order."""
        name = reserve_name(f"{node.name}/all/{self.graph.values[v].name}", self.names, "/part")
        return Node(name, "Concat", tuple(rows), (v,), MappingProxyType({"axis": 0}), phase=node.phase)

    def _like(self, v: int, prefix: str, part: _Part) -> int:
        value = self.graph.values[v]
        return self._value(f"{prefix}/{value.name}", _cut_type(value, part))

    def _value(
        self, name: str, type: TensorType | None, role: Role = Role.ACTIVATION, data: np.ndarray | None = None
    ) -> int:
        self.values.append(Value(reserve_name(name, self.names, "/part"), type, role, data=data))
        return len(self.values) - 1

    def _dense(self, nodes: Sequence[Node]) -> Graph:
        """The graph without unwritten values, with dense ids."""
        graph = self.graph
        written = {v for node in nodes for v in node.writes}
        stay = [v for v, value in enumerate(self.values) if value.role is not Role.ACTIVATION or v in written]
        return restrict_values(graph, stay, nodes, self.values)


def scanned_values(trips: LoopInterface) -> list[int]:
    """Outer values that are scanned."""
    return [trips.sequence(k) for k in range(trips.scanned)]


def _cut_type(value: Value, part: _Part) -> TensorType | None:
    type = value.type
    return None if type is None else TensorType(type.dtype, (part.end - part.begin, *type.shape[1:]))
