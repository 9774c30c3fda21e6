"""Lowering of planned scans to standard ONNX ops, for runtimes without the remat ops.

    TailScan           Scan over the first trips ──▶ Scan over the last trips, which returns their saves
    TailScanGrad       backward Scan over the last trips ──▶ backward Scan over the first; stacks are joined
    SnapshotScan       Scan ──▶ Scan ──▶ ...   cut before the trips whose states are saved
    SnapshotScanGrad   the unrolled schedule: a Scan for each advance, the inlined body for each backward iteration

Results are bit-identical. Saved states become plain values, freed after their last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Body, Graph, Node, Role, TensorType, Value, consumers, walk
from graph.ir.names import reserve_name
from graph.ir.renumber import restrict_values
from graph.loop_remat.joint_body import is_random
from graph.ops.control_flow.interface import CALL, LoopInterface, trip_count
from graph.ops.control_flow.snapshot_scan import ADVANCE, RESTORE, SNAPSHOT_GRAD, SNAPSHOT_SCAN, STORE, SnapshotGrad
from graph.ops.control_flow.tail_scan import TAIL_GRAD, TAIL_SCAN, TailGrad, tail_stack_counts

_PLANNED = frozenset({SNAPSHOT_SCAN, SNAPSHOT_GRAD, TAIL_SCAN, TAIL_GRAD})
#: Longest schedule that is unrolled: each action is a node with a body.
MAX_ACTIONS = 20_000

ScanInput = tuple[int, int, bool]  # outer value, axis, whether its elements are in iteration order


def lower_to_standard_ops(graph: Graph) -> Graph:
    """`graph` with all planned scans lowered, in bodies too. Raises BadGraph naming a node that cannot be lowered."""
    if not any(node.op in _PLANNED for nested in walk(graph) for node in nested.nodes):
        return graph
    return _Writing(graph).written()


class _Writing:
    """State of the lowering of one graph."""

    def __init__(self, graph: Graph):
        self.graph, self.node = graph, Node("", "", (), ())
        self.values, self.nodes = list(graph.values), list[Node]()
        self.value_names = {value.name for value in graph.values}
        self.node_names = {node.name for node in graph.nodes}
        self.kept: dict[int, list[tuple[int, ...]]] = {}  # first stack of rows -> states in each row, () for none
        self.gone: set[int] = set()

    def written(self) -> Graph:
        kinds = {
            TAIL_SCAN: self._tail_scan,
            TAIL_GRAD: self._tail_grad,
            SNAPSHOT_SCAN: self._snapshot_scan,
            SNAPSHOT_GRAD: self._snapshot_grad,
        }
        last: dict[int, int] = {}  # node -> last node of its lowering
        for n, node in enumerate(self.graph.nodes):
            first = len(self.nodes)
            bodies = {key: replace(body, graph=lower_to_standard_ops(body.graph)) for key, body in node.bodies.items()}
            self.node = replace(node, bodies=MappingProxyType(bodies) if bodies else node.bodies)
            if node.op not in _PLANNED:
                self.nodes.append(self.node)
            else:
                if any(is_random(inner) for body in bodies.values() for inner in body.graph.nodes):
                    raise self._refused("draws random numbers, which another runtime cannot reproduce")
                kinds[node.op]()
            after = tuple(last[before] for before in node.after if before in last)
            self.nodes[first:] = [replace(rewritten, after=after) for rewritten in self.nodes[first:]]
            last[n] = len(self.nodes) - 1
        graph = replace(self.graph, values=tuple(self.values), nodes=tuple(self.nodes))
        named = {v for v, readers in enumerate(consumers(graph)) if readers} | set(graph.outputs)
        if wrong := sorted(self.gone & named):
            raise self._refused(f"outputs {quoted(graph.values[wrong[0]].name)}, which another node reads")
        return restrict_values(graph, [v for v in range(len(graph.values)) if v not in self.gone])

    def _refused(self, why: str) -> BadGraph:
        return BadGraph.one(
            "not_standard",
            f"node {quoted(self.node.name)}",
            f"{self.node.op}, which {why}",
            "a node that standard ops can express",
            "plan with a larger budget, or export the native document",
        )

    # Forward nodes

    def _sequences(self, trips: LoopInterface) -> list[ScanInput]:
        layouts = zip(trips.input_axes(), trips.input_directions(), strict=True)
        return [(trips.sequence(k), axis, not back) for k, (axis, back) in enumerate(layouts)]

    def _count(self) -> int:
        count = trip_count(self.values, self.node).bound
        if count is None:
            raise self._refused("makes an unknown number of trips")
        return count

    def _tail_scan(self) -> None:
        trips, count = LoopInterface.of(self.node), self._count()
        of_tail, tail = tail_stack_counts(self.node)
        whole = trips.emitted - of_tail
        states, first = self._part(trips, 0, count - tail, self.node.inputs[: trips.states], whole)
        states, second = self._part(trips, count - tail, count, states, trips.emitted)
        outputs = self.node.outputs[trips.states :]
        for k, out in enumerate(outputs):
            if out != ABSENT:
                rows = [first[k], second[k]] if k < whole else [second[k]]
                self._join(rows, out, trips.output_axes()[k], bool(trips.output_directions()[k]))
        self._name(states, self.node.outputs)

    def _snapshot_scan(self) -> None:
        node, trips, count = self.node, LoopInterface.of(self.node), self._count()
        kept, chosen = list(node.attributes["snapshots"]), list(node.attributes["snapshot_states"])
        states: Sequence[int] = node.inputs[: trips.states]
        rows: list[tuple[int, ...]] = [() for _ in range(int(node.attributes["rows"]))]
        parts: list[list[int]] = []
        for begin, end in pairwise(sorted({0, *kept, count})):
            if begin in kept:
                rows[kept.index(begin)] = tuple(states[i] for i in chosen)
            states, emitted = self._part(trips, begin, end, states, trips.emitted)
            parts.append(emitted)
        stacks = node.outputs[trips.states + trips.emitted :]
        for k, out in enumerate(node.outputs[trips.states : trips.states + trips.emitted]):
            if out != ABSENT:
                rows_of = [part[k] for part in parts]
                self._join(rows_of, out, trips.output_axes()[k], bool(trips.output_directions()[k]))
        self._name(states, node.outputs)
        self.kept[stacks[0]] = rows
        self.gone.update(stacks)

    def _part(
        self, trips: LoopInterface, begin: int, end: int, states: Sequence[int], emitted: int
    ) -> tuple[list[int], list[int]]:
        """A Scan over iterations [begin, end): (final states, stacks of its first `emitted` emissions)."""
        body = _shortened(trips.body, trips.states + emitted)
        return self._scan(
            body,
            states,
            self._sequences(trips),
            (begin, end),
            self._count(),
            False,
            (trips.output_axes()[:emitted], trips.output_directions()[:emitted]),
        )

    # Backward nodes

    def _ways(self, scanned: int) -> list[ScanInput]:
        node = self.node
        axes = node.attributes.get("scan_input_axes") or [0] * scanned
        directions = node.attributes.get("scan_input_directions") or [0] * scanned
        values = node.inputs[len(node.inputs) - scanned :]
        return [(v, axis, bool(is_reversed)) for v, axis, is_reversed in zip(values, axes, directions, strict=True)]

    def _stacked(self, emitted: int) -> tuple[list[int], list[int]]:
        """(axis, direction) of each stacked output of the backward node."""
        attributes = self.node.attributes
        axes, directions = (list(attributes.get(f"scan_output_{name}") or []) for name in ("axes", "directions"))
        return axes or [0] * emitted, directions or [0] * emitted

    def _tail_grad(self) -> None:
        node, back = self.node, TailGrad.of(self.node)
        stacked, ways = self._stacked(back.emitted), self._ways(back.scanned)
        bounds = ((back.trips - back.tail, back.trips), (0, back.trips - back.tail))
        states: Sequence[int] = node.inputs[: back.states]
        parts = []
        for key, body, (begin, end) in zip(("tail", "body"), (back.tail_body, back.body), bounds, strict=True):
            rows = node.inputs[back.states : back.states + back.rows] if key == "tail" else ()
            sequences = [self._cut(*ways[k], begin, end, back.trips) for k in back.reads(key)]
            states, outputs = self._scan(
                _shortened(body, back.states + back.emitted),
                states,
                [*((v, 0, True) for v in rows), *sequences],
                (0, end - begin),
                end - begin,
                True,
                stacked,
            )
            parts.append(outputs)
        self._hand_out(states, parts, back.emitted, stacked)

    def _snapshot_grad(self) -> None:
        node, back = self.node, SnapshotGrad.of(self.node)
        if len(node.attributes["schedule"]) > 3 * MAX_ACTIONS:
            raise self._refused(f"has a schedule of more than {MAX_ACTIONS} actions")
        stacks = node.inputs[back.gradients : back.gradients + back.rows]
        if stacks[0] not in self.kept:
            raise self._refused("reads states that no SnapshotScan of its graph saved")
        rows, ways, count = list(self.kept[stacks[0]]), self._ways(back.scanned), back.trips()
        gradients, hand = list(node.inputs[: back.gradients]), tuple[int, ...]()
        emitted = len(back.body.graph.outputs) - back.gradients
        stacked, parts = self._stacked(emitted), []
        for kind, begin, end in back.schedule():
            if kind == STORE:
                rows[end] = hand
            elif kind == RESTORE:
                hand = rows[end]
            elif kind == ADVANCE:
                sequences = [ways[k] for k in back.advance_reads]
                states, _ = self._scan(back.advance, hand, sequences, (begin, end), count, False, ([], []))
                hand = tuple(states)
            else:
                elements = [self._element(*way, begin, count) for way in ways]
                outputs = self._called(back.body, [*gradients, *hand, *elements])
                gradients = outputs[: back.gradients]
                parts.append(
                    [self._row(v, axis) for v, axis in zip(outputs[back.gradients :], stacked[0], strict=True)]
                )
        self._hand_out(gradients, parts, emitted, stacked)

    def _hand_out(
        self, states: Sequence[int], parts: Sequence[Sequence[int]], emitted: int, stacked: tuple[list[int], list[int]]
    ) -> None:
        """Write the outputs of the backward node: gradients, then joined stacks; the rows have no reader."""
        outputs, count = self.node.outputs, len(states)
        for k, out in enumerate(outputs[count : count + emitted]):
            if out != ABSENT:
                self._join([part[k] for part in parts], out, stacked[0][k], bool(stacked[1][k]))
        self._name(states, outputs)
        self.gone.update(v for v in outputs[count + emitted :] if v != ABSENT)

    # Nodes

    def _scan(
        self,
        body: Body,
        states: Sequence[int],
        sequences: Sequence[ScanInput],
        bounds: tuple[int, int],
        count: int,
        backwards: bool,
        stacked: tuple[Sequence[int], Sequence[int]],
    ) -> tuple[list[int], list[int]]:
        """A Scan over iterations `bounds` of `count`: (final states, stacks)."""
        begin, end = bounds
        given = [self._cut(*sequence, begin, end, count) for sequence in sequences]
        if not given:  # one sequence gives the trip count
            v = self._constant("trips", np.zeros(end - begin, np.bool_))
            given, body = [(v, 0, True)], _with_input(body, TensorType("bool", ()))
        graph = body.graph
        types = list(graph.types_of(graph.outputs))
        results = [self._value(graph.values[v].name, graph.values[v].type) for v in graph.outputs[: len(states)]]
        stacks = [
            self._value(graph.values[v].name, _stack(type, axis, end - begin))
            for v, type, axis in zip(graph.outputs[len(states) :], types[len(states) :], stacked[0], strict=True)
        ]
        out = {"scan_output_axes": list(stacked[0]), "scan_output_directions": list(stacked[1])}
        self._add(
            "Scan",
            [*states, *(v for v, _, _ in given)],
            [*results, *stacks],
            bodies=MappingProxyType({"body": body}),
            attributes={
                "num_scan_inputs": len(given),
                "scan_input_axes": [axis for _, axis, _ in given],
                "scan_input_directions": [int(ordered == backwards) for _, _, ordered in given],
                **(out if stacks else {}),
            },
        )
        return results, stacks

    def _cut(self, v: int, axis: int, ordered: bool, begin: int, end: int, count: int) -> ScanInput:
        """Iterations [begin, end) of a sequence."""
        if (begin, end) == (0, count):
            return v, axis, ordered
        low, high = (begin, end) if ordered else (count - end, count - begin)
        type = self.values[v].type
        ends = [self._constant(name, np.array([k])) for name, k in (("begin", low), ("end", high), ("axis", axis))]
        result = self._value(self.values[v].name, None if type is None else _cut_type(type, axis, high - low))
        self._add("Slice", [v, *ends], [result])
        return result, axis, ordered

    def _element(self, v: int, axis: int, ordered: bool, trip: int, count: int) -> int:
        """The element of a sequence in an iteration."""
        type = self.values[v].type
        place = self._constant("place", np.array(trip if ordered else count - 1 - trip))
        result = self._value(self.values[v].name, None if type is None else _element_type(type, axis))
        self._add("Gather", [v, place], [result], attributes={"axis": axis})
        return result

    def _row(self, v: int, axis: int) -> int:
        type = self.values[v].type
        result = self._value(self.values[v].name, _stack(type, axis, 1))
        self._add("Unsqueeze", [v, self._constant("axis", np.array([axis]))], [result])
        return result

    def _called(self, body: Body, given: Sequence[int]) -> list[int]:
        graph = body.graph
        outputs = [self._value(graph.values[v].name, graph.values[v].type) for v in graph.outputs]
        self._add(CALL, given, outputs, bodies=MappingProxyType({"body": body}))
        return outputs

    def _join(self, rows: Sequence[int], out: int, axis: int, turned: bool) -> None:
        if len(rows) == 1:
            self._add("Identity", rows, [out])
        else:
            self._add("Concat", rows[::-1] if turned else rows, [out], attributes={"axis": axis})

    def _name(self, made: Sequence[int], outputs: Sequence[int]) -> None:
        for v, out in zip(made, outputs, strict=False):
            if out != ABSENT:
                self._add("Identity", [v], [out])

    def _add(self, op: str, inputs: Sequence[int], outputs: Sequence[int], **fields: Any) -> None:
        name = reserve_name(f"{self.node.name}/{op.rpartition('::')[2].lower()}", self.node_names)
        fields["attributes"] = MappingProxyType(fields.get("attributes", {}))
        self.nodes.append(Node(name, op, tuple(inputs), tuple(outputs), phase=self.node.phase, **fields))

    def _value(self, name: str, type: TensorType | None) -> int:
        self.values.append(Value(reserve_name(f"{self.node.name}/{name}", self.value_names), type))
        return len(self.values) - 1

    def _constant(self, name: str, data: np.ndarray) -> int:
        type = TensorType(str(data.dtype), data.shape)
        self.values.append(
            Value(reserve_name(f"{self.node.name}/{name}", self.value_names), type, Role.CONSTANT, data=data)
        )
        return len(self.values) - 1


def _shortened(body: Body, outputs: int) -> Body:
    """The body with only its first `outputs` outputs."""
    return replace(body, graph=replace(body.graph, outputs=body.graph.outputs[:outputs]))


def _with_input(body: Body, type: TensorType) -> Body:
    """The body with an additional, unread formal input."""
    graph = body.graph
    name = reserve_name("trip", {value.name for value in graph.values})
    values = (*graph.values, Value(name, type, Role.INPUT))
    return replace(body, graph=replace(graph, values=values, inputs=(*graph.inputs, len(graph.values))))


def _stack(type: TensorType | None, axis: int, length: int) -> TensorType | None:
    if type is None:
        return None
    axis += len(type.shape) + 1 if axis < 0 else 0
    return TensorType(type.dtype, (*type.shape[:axis], length, *type.shape[axis:]))


def _cut_type(type: TensorType, axis: int, length: int) -> TensorType:
    axis %= len(type.shape)
    return TensorType(type.dtype, (*type.shape[:axis], length, *type.shape[axis + 1 :]))


def _element_type(type: TensorType, axis: int) -> TensorType:
    axis %= len(type.shape)
    return TensorType(type.dtype, type.shape[:axis] + type.shape[axis + 1 :])
