"""Rewrite of a pair whose last iterations save more than the others, since their backward iterations run first.

    Scan ──▶ stacks of all trips ──▶ Scan      TailScan ──▶ stacks, and longer ones of the last trips ──▶ TailScanGrad

A backward iteration writes the values it recomputes over the saved row that the previous iterations have read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from graph.errors import BadGraph
from graph.ir import ABSENT, Node, TensorType
from graph.loop_remat.body_builder import backward_needs, build_body
from graph.loop_remat.joint_body import JointGraph, is_random
from graph.loop_remat.rewrite import PairRewrite, ScanSource, TailPolicy, scan_attributes, scan_elements
from graph.ops.control_flow import TAIL_GRAD, TAIL_SCAN, LoopInterface, trip_count
from graph.ops.control_flow.execution import LAST_TRIP_FIRST


class TailRewrite(PairRewrite):
    """Rewrite to `SavePolicy.tail`. Raises BadGraph unless a Scan of known length saves more in its last iterations."""

    def trips(self) -> None:
        tail, joint = self.saving.tail, self.joints[0]
        assert tail is not None
        trips, back = LoopInterface.of(self.forward), LoopInterface.of(self.backward)
        count = self._count(tail, joint)
        wanted = backward_needs(joint, tail.backward)
        *_, there = self.stacks(trips)
        saved = {v for v in self.needs[0] if joint.must_be_saved(v)} | set(there) | set(self.carried)
        rows = {v: self._rows(joint, v, tail.trips) for v in wanted if joint.must_be_saved(v) and v not in saved}
        if not rows:
            raise self._error("a backward pass whose last trips need no additional values")
        outputs, stack = self.rewrite_forward(trips, list(rows.items()))
        new = self.new_forward
        attributes = {**new.attributes, "tail_trips": tail.trips, "num_tail_stacks": len(rows)}
        self.new_forward = replace(new, op=TAIL_SCAN, attributes=MappingProxyType(attributes))
        elements = scan_elements(trips)
        firsts = [trips.state_in(i) for i in self.carried.values()]
        sequences = self.sequences(
            back, [*self.needs[0], *(v for v in wanted if v not in rows), *firsts], stack, elements
        )
        lasts = [outputs[i] for i in self.carried.values()]
        self.new_backward = self._back(back, count, wanted, rows, firsts, lasts, sequences)

    def _count(self, tail: TailPolicy, joint: JointGraph) -> int:
        """Trip count of the pair. Raises BadGraph if its last iterations cannot differ from the others."""
        forward, count = self.forward, trip_count(self.graph.values, self.forward)
        if forward.op != "Scan" or not count.exact or count.bound is None or forward.annotations.get(LAST_TRIP_FIRST):
            raise self._error(f"a {forward.op} of unknown trip count")
        if not 0 < tail.trips < count.bound:
            raise self._error(f"the last {tail.trips} of {count.bound} trips")
        draws = any(is_random(node) for node in joint.graph.nodes[joint.split :])
        if draws and not self.backward.annotations.get(LAST_TRIP_FIRST):
            raise self._error("a backward pass that draws random numbers")
        return count.bound

    def _back(
        self,
        back: LoopInterface,
        count: int,
        wanted: Sequence[int],
        rows: dict[int, int],
        firsts: Sequence[int],
        lasts: Sequence[int],
        sequences: dict[int, ScanSource],
    ) -> Node:
        """The backward node: one body for the last iterations, one for the others."""
        tail, joint, node = self.saving.tail, self.joints[0], self.backward
        assert tail is not None
        order, earlier = list(sequences), self.saving.backward[0]
        computed = {v for n in earlier for v in joint.graph.nodes[n].writes}
        refilled = [v for v in rows if v in computed]
        read = {"body": {*self.needs[0]}, "tail": {*wanted, *firsts}}
        reads = {key: [v for v in order if v >= joint.forward_values or v in used] for key, used in read.items()}
        carried, ends = [*joint.backward_inputs[: back.states], *self.carried], joint.backward_outputs
        results = [*ends[: back.states], *firsts, *ends[back.states :]]
        body = build_body(joint, node, earlier, [*carried, *reads["body"]], [*results, *refilled], joint.captures)
        last = build_body(joint, node, tail.backward, [*carried, *rows, *reads["tail"]], results, joint.captures)
        outputs = [*node.outputs, *[ABSENT] * (back.states + back.emitted - len(node.outputs))]
        outputs[back.states : back.states] = self.initial_state_outputs(joint, firsts)
        final_rows = [
            self.value(f"{node.name}/tail/{joint.graph.values[v].name}", self.values[row].type)
            for v, row in rows.items()
        ]
        states = [*node.inputs[: back.states], *lasts]
        attributes = {
            **scan_attributes(node, "input", [(axis, direction) for _, axis, direction in sequences.values()]),
            "num_scan_inputs": len(order),
            "num_tail_inputs": len(rows),
            "trips": count,
            "tail_trips": tail.trips,
            **{f"{key}_scan_inputs": [order.index(v) for v in of] for key, of in reads.items()},
            "laid_rows": [list(rows).index(v) for v in refilled],
        }
        if back.emitted:
            attributes |= {"scan_output_axes": back.output_axes(), "scan_output_directions": back.output_directions()}
        return replace(
            node,
            op=TAIL_GRAD,
            attributes=MappingProxyType({name: value for name, value in attributes.items() if value != []}),
            inputs=(*states, *rows.values(), *(outside for outside, _, _ in sequences.values())),
            outputs=(*outputs, *final_rows),
            in_place=tuple((len(outputs) + i, len(states) + i) for i in range(len(rows))),
            bodies=MappingProxyType({"body": body, "tail": last}),
            stream=self.stream(tail.backward),
        )

    def _rows(self, joint: JointGraph, v: int, trips: int) -> int:
        """A new outer value: the rows that the last iterations save of a value of the body."""
        value = joint.graph.values[v]
        if value.type is None:
            raise self._error(f"a value without a type, {value.name},")
        return self.value(
            f"{self.forward.name}/tail/{value.name}", TensorType(value.type.dtype, (trips, *value.type.shape))
        )

    def _error(self, what: str) -> BadGraph:
        return BadGraph.one(
            "no_tail",
            self.forward.name,
            f"{what} cannot save other values than the trips before",
            "a Scan of known trip count, and values that only its last trips save",
            "save the same values in each trip",
        )
