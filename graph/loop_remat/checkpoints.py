"""Rewrite of a pair to a checkpointed scan, whose iterations do not all save the same.

    snapshots   Scan ──▶ states of all trips ──▶ Scan    SnapshotScan ──▶ rows of states ──▶ SnapshotScanGrad
    tail        Scan ──▶ stacks of all trips ──▶ Scan    TailScan ──▶ stacks, and longer ones of the last trips, whose
                                                         backward iterations run first ──▶ TailScanGrad

With snapshots a backward iteration starts from the states alone, which are saved before some iterations and recomputed
for the others. With a tail an earlier backward iteration writes the values it recomputes over a row that has been read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from graph.errors import BadGraph
from graph.ir import ABSENT, Body, TensorType
from graph.loop_remat.body_builder import backward_needs, build_body, needed_nodes
from graph.loop_remat.joint_body import is_random, is_unrepeatable
from graph.loop_remat.rewrite import PairRewrite, ScanSource, SnapshotPolicy, TailPolicy, scan_elements
from graph.ops.control_flow import SNAPSHOT_GRAD, SNAPSHOT_SCAN, TAIL_GRAD, TAIL_SCAN, LoopInterface, trip_count
from graph.ops.control_flow.execution import LAST_TRIP_FIRST


class CheckpointRewrite(PairRewrite):
    """Rewrite to `SavePolicy.checkpoints`. Raises BadGraph for a pair that cannot be one."""

    def rewrite(self) -> None:
        if self.forward.op != "Scan":
            raise self._error(f"a {self.forward.op}")
        if self.forward.annotations.get(LAST_TRIP_FIRST):
            raise self._error("a Scan that is the backward pass of another")
        super().rewrite()

    def trips(self) -> None:
        trips, policy = LoopInterface.of(self.forward), self.saving.checkpoints
        if isinstance(policy, TailPolicy):
            self._save_more_at_the_end(trips, policy)
        elif policy is not None:
            self._save_states(trips, policy)

    def _save_more_at_the_end(self, trips: LoopInterface, tail: TailPolicy) -> None:
        joint, needs, earlier = self.joints[0], self.needs[0], self.saving.backward[0]
        count = self._count(tail)
        wanted = backward_needs(joint, tail.backward)
        *_, there = self.stacks(trips)
        saved = {v for v in needs if joint.must_be_saved(v)} | set(there) | set(self.carried)
        rows = {v: self._rows(v, tail.trips) for v in wanted if joint.must_be_saved(v) and v not in saved}
        if not rows:
            raise self._error("a backward pass whose last trips need no additional values")
        stack = self.rewrite_forward(trips, list(rows.items()))
        self._name_forward(TAIL_SCAN, {"tail_trips": tail.trips, "num_tail_stacks": len(rows)})
        back, own = LoopInterface.of(self.backward), [v for v in wanted if v not in rows]
        sequences = self.sequences(back, [*needs, *own, *self.firsts], stack, scan_elements(trips))
        order, read = list(sequences), {"body": {*needs}, "tail": {*wanted, *self.firsts}}
        reads = {key: [v for v in order if v >= joint.forward_values or v in used] for key, used in read.items()}
        computed = {v for n in earlier for v in joint.graph.nodes[n].writes}
        refilled = [v for v in rows if v in computed]
        self._set_backward(
            TAIL_GRAD,
            {
                "body": self.scan_body(earlier, reads["body"], refilled),
                "tail": self.scan_body(tail.backward, [*rows, *reads["tail"]]),
            },
            rows,
            sequences,
            {
                "num_tail_inputs": len(rows),
                "trips": count,
                "tail_trips": tail.trips,
                **{f"{key}_scan_inputs": [order.index(v) for v in of] for key, of in reads.items()},
                "laid_rows": [list(rows).index(v) for v in refilled],
            },
            self.stream(tail.backward),
        )

    def _count(self, tail: TailPolicy) -> int:
        """Trip count of the pair. Raises BadGraph if its last iterations cannot differ from the others."""
        joint, count = self.joints[0], trip_count(self.graph.values, self.forward)
        if not count.exact or count.bound is None:
            raise self._error("a Scan of unknown trip count")
        if not 0 < tail.trips < count.bound:
            raise self._error(f"the last {tail.trips} of {count.bound} trips")
        draws = any(is_random(node) for node in joint.graph.nodes[joint.split :])
        if draws and not self.backward.annotations.get(LAST_TRIP_FIRST):
            raise self._error("a backward pass that draws random numbers")
        return count.bound

    def _save_states(self, trips: LoopInterface, snapshots: SnapshotPolicy) -> None:
        joint = self.joints[0]
        if any(is_unrepeatable(node) for node in joint.graph.nodes[: joint.split]):
            raise self._error("a Scan that may not run a trip twice")
        self.gone = set(joint.saved.values())
        states, advance, read = self._states(trips)
        rows = {v: self._rows(v, snapshots.rows) for v in map(trips.state_in, states)}
        stack, elements = self.rewrite_forward(trips, rows=rows), scan_elements(trips)
        self._name_forward(
            SNAPSHOT_SCAN, {"snapshots": list(snapshots.kept), "rows": snapshots.rows, "snapshot_states": states}
        )
        ahead = [v for v in elements if v in read]
        sequences = self.sequences(LoopInterface.of(self.backward), [*self.needs[0], *ahead], stack, elements)
        after = [trips.state_out(i) for i in states]
        order = list(sequences)
        self._set_backward(
            SNAPSHOT_GRAD,
            {
                "body": self.scan_body(self.saving.backward[0], [*rows, *order]),
                "advance": build_body(joint, self.backward, advance, [*rows, *ahead], after, joint.captures),
            },
            rows,
            sequences,
            {
                "num_row_inputs": len(rows),
                "schedule": list(snapshots.schedule),
                "advance_scan_inputs": [order.index(v) for v in ahead],
            },
            self.forward.stream or self.forward.name,
        )

    def _states(self, trips: LoopInterface) -> tuple[list[int], list[int], set[int]]:
        """(states that a backward iteration needs and those they depend on, nodes that compute them, values read)."""
        joint, place = self.joints[0], {trips.state_in(i): i for i in range(trips.states)}
        *_, stack = self.stacks(trips)
        available = {*place, *stack, *self.carried}
        more = [v for v in self.needs[0] if joint.must_be_saved(v) and v not in available]
        if more:
            raise self._error(f"a backward pass that needs {joint.graph.values[more[0]].name} of each trip")
        states = {place[v] for v in self.needs[0] if v in place}
        while True:
            after = [trips.state_out(i) for i in states]
            nodes = needed_nodes(joint, after)
            read = {v for n in nodes for v in joint.graph.nodes[n].reads} | set(after)
            added = {place[v] for v in read if v in place} - states
            if not added:
                return sorted(states), nodes, read
            states |= added

    def _name_forward(self, op: str, attributes: Mapping[str, Any]) -> None:
        new = self.new_forward
        self.new_forward = replace(new, op=op, attributes=MappingProxyType({**new.attributes, **attributes}))

    def _set_backward(
        self,
        op: str,
        bodies: Mapping[str, Body],
        rows: Mapping[int, int],
        sequences: Mapping[int, ScanSource],
        attributes: Mapping[str, Any],
        stream: str | None,
    ) -> None:
        """Set the backward node, which returns the `rows` (body value -> outer value) in place."""
        node, back = self.backward, LoopInterface.of(self.backward)
        outputs = [*node.outputs, *[ABSENT] * (back.states + back.emitted - len(node.outputs))]
        outputs[back.states : back.states] = self.initial_state_outputs()
        final = [self._value(node.name, v, self.values[row].type) for v, row in rows.items()]
        passed = [*node.inputs[: back.states], *self.lasts]
        given = {**self.backward_attributes(sequences), **attributes}
        if back.emitted:
            axes, directions = zip(*back.output_layouts(), strict=True)
            given |= {"scan_output_axes": list(axes), "scan_output_directions": list(directions)}
        self.new_backward = replace(
            node,
            op=op,
            attributes=MappingProxyType({name: value for name, value in given.items() if value != []}),
            inputs=(*passed, *rows.values(), *(outside for outside, _, _ in sequences.values())),
            outputs=(*outputs, *final),
            in_place=tuple((len(outputs) + i, len(passed) + i) for i in range(len(rows))),
            bodies=MappingProxyType(dict(bodies)),
            stream=stream,
        )

    def _rows(self, v: int, rows: int) -> int:
        """A new outer value: rows of a value of the body."""
        value = self.joints[0].graph.values[v]
        if value.type is None:
            raise self._error(f"a value without a type, {value.name},")
        return self._value(self.forward.name, v, TensorType(value.type.dtype, (rows, *value.type.shape)))

    def _value(self, node: str, v: int, type: TensorType | None) -> int:
        kind = "tail" if isinstance(self.saving.checkpoints, TailPolicy) else "kept"
        return self.value(f"{node}/{kind}/{self.joints[0].graph.values[v].name}", type)

    def _error(self, what: str) -> BadGraph:
        if isinstance(self.saving.checkpoints, TailPolicy):
            return BadGraph.one(
                "no_tail",
                self.forward.name,
                f"{what} cannot save other values than the trips before",
                "a Scan of known trip count, and values that only its last trips save",
                "save the same values in each trip",
            )
        return BadGraph.one(
            "no_snapshots",
            self.forward.name,
            f"{what} cannot save some states and recompute the others",
            "a Scan whose trips depend only on typed states, elements and captures",
            "save values in each trip",
        )
