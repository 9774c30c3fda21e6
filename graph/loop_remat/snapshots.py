"""Rewrite of a pair to snapshots: states are saved before some iterations and recomputed for the others.

    Scan ──▶ states of all trips ──▶ Scan           SnapshotScan ──▶ rows of states ──▶ SnapshotScanGrad

A backward iteration starts from the states alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from graph.errors import BadGraph
from graph.ir import ABSENT, Node, TensorType
from graph.loop_remat.body_builder import build_body, needed_nodes
from graph.loop_remat.joint_body import JointGraph, is_unrepeatable
from graph.loop_remat.rewrite import PairRewrite, ScanSource, scan_attributes, scan_elements
from graph.ops.control_flow import SNAPSHOT_GRAD, SNAPSHOT_SCAN, LoopInterface
from graph.ops.control_flow.execution import LAST_TRIP_FIRST


class SnapshotRewrite(PairRewrite):
    """Rewrite to `SavePolicy.snapshots`. Raises BadGraph if an iteration needs more than states or may not rerun."""

    def rewrite(self) -> None:
        snapshots, joint = self.saving.snapshots, self.joints[0]
        assert snapshots is not None
        self.gone = set(joint.saved.values())
        if self.forward.op != "Scan" or any(is_unrepeatable(node) for node in joint.graph.nodes[: joint.split]):
            raise self._error(f"a {self.forward.op} that may not run a trip twice")
        if self.forward.annotations.get(LAST_TRIP_FIRST):
            raise self._error("a Scan that is the backward pass of another")
        trips, back = LoopInterface.of(self.forward), LoopInterface.of(self.backward)
        self.carried = self.find_carried()
        outputs, kept, layouts, stack = self.stacks(trips)
        self.name_final_states(outputs)
        states = self._states(trips, joint, stack)
        advance = needed_nodes(joint, [trips.state_out(i) for i in states])
        read = {v for n in advance for v in joint.graph.nodes[n].reads} | {trips.state_out(i) for i in states}
        elements = scan_elements(trips)
        sequences = self.sequences(back, self.needs[0], stack, elements)
        for v in elements:
            if v in read:
                outside, axis, direction = elements[v]
                sequences.setdefault(v, (outside, axis, 1 - direction))
        types = [self._rows(joint, trips.state_in(i), snapshots.rows) for i in states]
        names = [joint.graph.values[trips.state_in(i)].name for i in states]
        rows = [self.value(f"{self.forward.name}/kept/{n}", type) for n, type in zip(names, types, strict=True)]
        self.new_forward = replace(
            self._forward(
                joint,
                [*outputs[: trips.states], *(outputs[trips.states + k] for k in kept), *rows],
                [*joint.forward_outputs[: trips.states], *(trips.emission(k) for k in kept)],
                {
                    **scan_attributes(self.forward, "output", [layouts[k] for k in kept]),
                    "snapshots": list(snapshots.kept),
                    "rows": snapshots.rows,
                    "snapshot_states": states,
                },
            ),
            op=SNAPSHOT_SCAN,
        )
        lasts = [outputs[i] for i in self.carried.values()]
        final_rows = [self.value(f"{self.backward.name}/kept/{n}", type) for n, type in zip(names, types, strict=True)]
        self.new_backward = self._back(
            back, trips, states, lasts, rows, final_rows, sequences, advance, [v for v in elements if v in read]
        )

    def _states(self, trips: LoopInterface, joint: JointGraph, stack: dict[int, ScanSource]) -> list[int]:
        """States that a backward iteration needs, and the states they depend on."""
        place = {trips.state_in(i): i for i in range(trips.states)}
        available = {*place, *stack, *self.carried}
        more = [v for v in self.needs[0] if joint.must_be_saved(v) and v not in available]
        if more:
            raise self._error(f"a backward pass that needs {joint.graph.values[more[0]].name} of each trip")
        states = {place[v] for v in self.needs[0] if v in place}
        while True:
            nodes = needed_nodes(joint, [trips.state_out(i) for i in states])
            read = {v for n in nodes for v in joint.graph.nodes[n].reads} | {trips.state_out(i) for i in states}
            added = {place[v] for v in read if v in place} - states
            if not added:
                return sorted(states)
            states |= added

    def _back(
        self,
        back: LoopInterface,
        trips: LoopInterface,
        states: Sequence[int],
        lasts: Sequence[int],
        rows: Sequence[int],
        final_rows: Sequence[int],
        sequences: dict[int, ScanSource],
        advance: Sequence[int],
        read: Sequence[int],
    ) -> Node:
        """The backward node, which runs the schedule."""
        snapshots, joint, node = self.saving.snapshots, self.joints[0], self.backward
        assert snapshots is not None
        state_inputs, order = [trips.state_in(i) for i in states], list(sequences)
        formals = [*joint.backward_inputs[: back.states], *self.carried, *state_inputs, *order]
        firsts, results = [trips.state_in(i) for i in self.carried.values()], joint.backward_outputs
        body = build_body(
            joint,
            node,
            self.saving.backward[0],
            formals,
            [*results[: back.states], *firsts, *results[back.states :]],
            joint.captures,
        )
        ahead = build_body(
            joint, node, advance, [*state_inputs, *read], [trips.state_out(i) for i in states], joint.captures
        )
        outputs = [*node.outputs, *[ABSENT] * (back.states + back.emitted - len(node.outputs))]
        outputs[back.states : back.states] = self.initial_state_outputs(joint, firsts)
        passed = [*node.inputs[: back.states], *lasts]
        attributes = {
            **scan_attributes(node, "input", [(axis, direction) for _, axis, direction in sequences.values()]),
            "num_scan_inputs": len(order),
            "num_row_inputs": len(rows),
            "schedule": list(snapshots.schedule),
        }
        if back.emitted:
            attributes |= {"scan_output_axes": back.output_axes(), "scan_output_directions": back.output_directions()}
        if read:
            attributes["advance_scan_inputs"] = [order.index(v) for v in read]
        return replace(
            node,
            op=SNAPSHOT_GRAD,
            attributes=MappingProxyType(attributes),
            inputs=(*passed, *rows, *(outside for outside, _, _ in sequences.values())),
            outputs=(*outputs, *final_rows),
            in_place=tuple((len(outputs) + i, len(passed) + i) for i in range(len(rows))),
            bodies=MappingProxyType({"body": body, "advance": ahead}),
            stream=self.forward.stream or self.forward.name,
        )

    def _rows(self, joint: JointGraph, v: int, rows: int) -> TensorType:
        type = joint.graph.values[v].type
        if type is None:
            raise self._error(f"a state without a type, {joint.graph.values[v].name},")
        return TensorType(type.dtype, (rows, *type.shape))

    def _error(self, what: str) -> BadGraph:
        return BadGraph.one(
            "no_snapshots",
            self.forward.name,
            f"{what} cannot save some states and recompute the others",
            "a Scan whose trips depend only on typed states, elements and captures",
            "save values in each trip",
        )
