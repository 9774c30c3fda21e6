"""Lowering of checkpointed scans to standard ONNX ops, for runtimes without the remat ops.

    TailScan           Scan over the first trips ──▶ Scan over the last trips, which returns their saves
    TailScanGrad       backward Scan over the last trips ──▶ backward Scan over the first; stacks are joined
    SnapshotScan       Scan ──▶ Scan ──▶ ...   cut before the trips whose states are saved
    SnapshotScanGrad   the unrolled schedule: a Scan for each advance, the inlined body for each backward iteration

Results are bit-identical. Saved states become plain values, freed after their last use.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec.structs import replace

from graph.errors import BadGraph, quoted
from graph.ir import ABSENT, Body, Graph, Node, Role, TensorType, Value, consumers, walk
from graph.ir.names import reserve_name
from graph.ir.renumber import restrict_values
from graph.loop_remat.joint_body import is_random
from graph.ops.control_flow.checkpointed_scan import (
    ADVANCE,
    CHECKPOINTED_SCANS,
    RESTORE,
    STORE,
    TAIL_GRAD,
    CheckpointedGrad,
    Checkpoints,
)
from graph.ops.control_flow.interface import CALL, SCANS, Layout, LoopInterface, scan_layouts, trip_count
from graph.ops.control_flow.type_inference import element_type, stack_type

#: Longest schedule that is unrolled: each action is a node with a body.
MAX_ACTIONS = 20_000

ScanInput = tuple[int, int, bool]  # outer value, axis, whether its elements are in iteration order


def lower_to_standard_ops(graph: Graph) -> Graph:
    """`graph` with all checkpointed scans lowered, in bodies too. Raises BadGraph naming a node that cannot be."""
    if not any(node.op in CHECKPOINTED_SCANS for nested in walk(graph) for node in nested.nodes):
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
        last: dict[int, int] = {}  # node -> last node of its lowering
        for n, node in enumerate(self.graph.nodes):
            first = len(self.nodes)
            self._lower(node)
            after = tuple(last[before] for before in node.after if before in last)
            self.nodes[first:] = [replace(rewritten, after=after) for rewritten in self.nodes[first:]]
            last[n] = len(self.nodes) - 1
        graph = replace(self.graph, values=tuple(self.values), nodes=tuple(self.nodes))
        named = {v for v, readers in enumerate(consumers(graph)) if readers} | set(graph.outputs)
        if wrong := sorted(self.gone & named):
            raise self._refused(f"outputs {quoted(graph.values[wrong[0]].name)}, which another node reads")
        return restrict_values(graph, [v for v in range(len(graph.values)) if v not in self.gone])

    def _lower(self, node: Node) -> None:
        bodies = {key: replace(body, graph=lower_to_standard_ops(body.graph)) for key, body in node.bodies.items()}
        self.node = replace(node, bodies=MappingProxyType(bodies) if bodies else node.bodies)
        if node.op not in CHECKPOINTED_SCANS:
            self.nodes.append(self.node)
            return
        if any(is_random(inner) for body in bodies.values() for inner in body.graph.nodes):
            raise self._refused("draws random numbers, which another runtime cannot reproduce")
        (self._forward if node.op in SCANS else self._backward)()

    def _refused(self, why: str) -> BadGraph:
        return BadGraph.one(
            "not_standard",
            f"node {quoted(self.node.name)}",
            f"{self.node.op}, which {why}",
            "a node that standard ops can express",
            "plan with a larger budget, or export the native document",
        )

    # Forward nodes

    def _forward(self) -> None:
        node, trips, saves = self.node, LoopInterface.of(self.node), Checkpoints.of(self.node)
        count, whole = self._count(), trips.emitted - saves.tail_stacks
        states: Sequence[int] = node.inputs[: trips.states]
        rows: list[tuple[int, ...]] = [() for _ in range(saves.rows)]
        parts: list[list[int]] = []
        for begin, end in pairwise(sorted({0, *saves.row_of, max(0, count - saves.tail), count})):
            if begin in saves.row_of:
                rows[saves.row_of[begin]] = tuple(states[i] for i in saves.states)
            emitted = trips.emitted if begin >= count - saves.tail else whole
            states, stacks = self._scan(
                _shortened(trips.body, trips.states + emitted),
                states,
                self._sequences(trips.scanned, backwards=False),
                (begin, end),
                count,
                False,
                trips.output_layouts()[:emitted],
            )
            parts.append(stacks)
        self._hand_out(states, parts, trips.output_layouts())
        of_states = node.outputs[trips.states + trips.emitted :]
        if of_states:
            self.kept[of_states[0]] = rows

    def _count(self) -> int:
        count = trip_count(self.values, self.node).bound
        if count is None:
            raise self._refused("makes an unknown number of trips")
        return count

    # Backward nodes

    def _backward(self) -> None:
        back = CheckpointedGrad.of(self.node)
        gradients, parts = (self._tail_trips if self.node.op == TAIL_GRAD else self._scheduled_trips)(back)
        self._hand_out(gradients, parts, scan_layouts(self.node, "output", back.emitted))

    def _tail_trips(self, back: CheckpointedGrad) -> tuple[list[int], list[list[int]]]:
        """A Scan over the trips of either body: (gradients, their stacks)."""
        count, sequences, parts = back.trips(), self._sequences(back.scanned, backwards=True), list[list[int]]()
        gradients, first = list(self.node.inputs[: back.gradients]), count - back.tail
        for key, (begin, end) in {"tail": (first, count), "body": (0, first)}.items():
            rows = self.node.inputs[back.gradients : back.gradients + back.row_reads(key)]
            cut = [self._cut(*sequences[k], begin, end, count) for k in back.reads(key)]
            gradients, stacks = self._scan(
                _shortened(back.body(key), back.gradients + back.emitted),
                gradients,
                [*((v, 0, True) for v in rows), *cut],
                (0, end - begin),
                end - begin,
                True,
                scan_layouts(self.node, "output", back.emitted),
            )
            parts.append(stacks)
        return gradients, parts

    def _scheduled_trips(self, back: CheckpointedGrad) -> tuple[list[int], list[list[int]]]:
        """The unrolled schedule: (gradients, of each trip its rows of the stacks)."""
        if len(self.node.attributes["schedule"]) > 3 * MAX_ACTIONS:
            raise self._refused(f"has a schedule of more than {MAX_ACTIONS} actions")
        stacks = self.node.inputs[back.gradients : back.gradients + back.rows]
        if stacks[0] not in self.kept:
            raise self._refused("reads states that no SnapshotScan of its graph saved")
        rows, sequences, count = list(self.kept[stacks[0]]), self._sequences(back.scanned, True), back.trips()
        gradients, hand, parts = list(self.node.inputs[: back.gradients]), tuple[int, ...](), list[list[int]]()
        layouts = scan_layouts(self.node, "output", back.emitted)
        for kind, begin, end in back.schedule():
            if kind == STORE:
                rows[end] = hand
            elif kind == RESTORE:
                hand = rows[end]
            elif kind == ADVANCE:
                read = [sequences[k] for k in back.reads("advance")]
                hand = tuple(self._scan(back.body("advance"), hand, read, (begin, end), count, False, [])[0])
            else:
                elements = [self._element(*sequence, begin, count) for sequence in sequences]
                outputs = self._called(back.body("body"), [*gradients, *hand, *elements])
                gradients = outputs[: back.gradients]
                emitted = zip(outputs[back.gradients :], layouts, strict=True)
                parts.append([self._row(v, axis) for v, (axis, _) in emitted])
        return gradients, parts

    # Nodes

    def _sequences(self, scanned: int, backwards: bool) -> list[ScanInput]:
        """The last inputs of the node; a backward node counts trips from the last."""
        values = self.node.inputs[len(self.node.inputs) - scanned :]
        layouts = scan_layouts(self.node, "input", scanned)
        return [(v, axis, bool(turned) == backwards) for v, (axis, turned) in zip(values, layouts, strict=True)]

    def _hand_out(self, states: Sequence[int], parts: Sequence[Sequence[int]], layouts: Sequence[Layout]) -> None:
        """Write the outputs of the node: joined stacks, then final states; rows have no reader.

        Of a stack that only some parts have, these are the last ones of a forward node.
        """
        outputs, first = self.node.outputs, len(states)
        for k, (out, (axis, turned)) in enumerate(zip(outputs[first:], layouts, strict=False)):
            if out != ABSENT:
                self._join([part[k] for part in parts if k < len(part)], out, axis, bool(turned))
        for v, out in zip(states, outputs, strict=False):
            if out != ABSENT:
                self._add("Identity", [v], [out])
        self.gone.update(v for v in outputs[first + len(layouts) :] if v != ABSENT)

    def _scan(
        self,
        body: Body,
        states: Sequence[int],
        sequences: Sequence[ScanInput],
        bounds: tuple[int, int],
        count: int,
        backwards: bool,
        layouts: Sequence[Layout],
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
            self._value(graph.values[v].name, stack_type(type, axis, end - begin))
            for v, type, (axis, _) in zip(graph.outputs[len(states) :], types[len(states) :], layouts, strict=True)
        ]
        out = {
            "scan_output_axes": [axis for axis, _ in layouts],
            "scan_output_directions": [direction for _, direction in layouts],
        }
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
        result = self._value(self.values[v].name, element_type(type, axis))
        self._add("Gather", [v, place], [result], attributes={"axis": axis})
        return result

    def _row(self, v: int, axis: int) -> int:
        type = self.values[v].type
        result = self._value(self.values[v].name, stack_type(type, axis, 1))
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


def _cut_type(type: TensorType, axis: int, length: int) -> TensorType:
    axis %= len(type.shape)
    return TensorType(type.dtype, (*type.shape[:axis], length, *type.shape[axis + 1 :]))
