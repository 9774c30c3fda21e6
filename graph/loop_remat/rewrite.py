"""Rewrite of one pair to another save policy: forward outputs, backward inputs and both bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from graph.errors import BadGraph
from graph.ir import ABSENT, Body, Graph, Node, TensorType, Value
from graph.ir.names import reserve_name
from graph.loop_remat.body_builder import backward_needs, build_body, needed_nodes
from graph.loop_remat.body_pairs import BodyPair
from graph.loop_remat.joint_body import BACKWARD_SUFFIX, JointGraph, is_random
from graph.ops.control_flow import CALL, LoopInterface, trip_count
from graph.ops.control_flow.checkpointed_scan import BACKWARD
from graph.ops.control_flow.execution import LAST_TRIP_FIRST

ScanSource = tuple[int, int, int]  # (outer value, axis, direction)


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """States saved before some iterations only; see `checkpoints.py`."""

    kept: tuple[int, ...]  # iterations before which the forward pass stores the states, in rows 0, 1, ...
    rows: int
    schedule: tuple[int, ...]  # of the backward pass, three integers per action

    def fits(self, trips: int) -> bool:
        """True if the schedule, which runs its iterations from last to first, has `trips` iterations."""
        return trips == 1 + max(self.schedule[2::3][i] for i, kind in enumerate(self.schedule[::3]) if kind == BACKWARD)


@dataclass(frozen=True, slots=True)
class TailPolicy:
    """The last iterations of a Scan save more than the others; see `checkpoints.py`."""

    trips: int
    backward: tuple[int, ...]  # joint nodes in the order of their backward pass

    def fits(self, trips: int) -> bool:
        """True if a loop of `trips` iterations has others before the last ones."""
        return self.trips < trips


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """Values saved by a pair, given by the nodes its backward pass runs; equal for pairs of equal structure."""

    #: Per joint graph its nodes in the order of the backward pass, repeats allowed.
    backward: tuple[tuple[int, ...], ...]
    #: Per joint graph the policies of the pairs inside; None: unchanged.
    inner: tuple[tuple[SavePolicy | None, ...], ...] = ()
    checkpoints: SnapshotPolicy | TailPolicy | None = None  # None: all iterations save the same values


class PairRewrite:
    """State of the rewrite of one pair. `new_forward`, `new_backward`, `values` and `gone` are the result."""

    def __init__(self, graph: Graph, pair: BodyPair, saving: SavePolicy, joints: Sequence[JointGraph], names: set[str]):
        self.graph, self.pair, self.saving, self.names = graph, pair, saving, names
        self.forward, self.backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
        self.new_forward, self.new_backward = self.forward, self.backward
        self.values, self.gone = list(graph.values), set[int]()
        self.carried: dict[int, int] = {}
        self.lasts: list[int] = []  # outer values: final values of carried states
        self.joints = joints
        self.needs = [backward_needs(j, row) for j, row in zip(self.joints, saving.backward, strict=True)]
        if self.forward.op == "Loop" and not any(v in self.joints[0].saved for v in self.needs[0]):
            self.needs[0] += tuple(self.joints[0].saved)[:1]  # one sequence gives the trip count

    def rewrite(self) -> None:
        linked = {outer for joint in self.joints for outer in joint.saved.values()}
        needed = {
            joint.saved[v]
            for joint, needs in zip(self.joints, self.needs, strict=True)
            for v in needs
            if v in joint.saved
        }
        self.gone = linked - needed
        self.carried = self.find_carried() if self.forward.op in ("Scan", "Loop") else {}
        self.gone |= {self.joints[0].saved[v] for v in self.carried if v in self.joints[0].saved}
        if self.forward.op == "If":
            self._if()
        elif self.forward.op == CALL:
            self._call()
        else:
            self.trips()

    def find_carried(self) -> dict[int, int]:
        """State outputs of a trip that need no save of their own, since the state inputs are saved: value -> state.

        The backward pass reaches iteration t from t + 1, whose state input is the state output of t: it carries it.
        """
        joint, needs, trips = self.joints[0], set(self.needs[0]), LoopInterface.of(self.forward)
        outputs = self.forward.outputs[trips.states :]
        linked = {*joint.saved.values(), ABSENT}
        readable = {trips.emission(k) for k, v in enumerate(outputs) if v not in linked}
        carried: dict[int, int] = {}
        for i in range(trips.states):
            v = trips.state_out(i)
            if v in needs and v not in readable and v not in joint.states and trips.state_in(i) in needs:
                carried.setdefault(v, i)
        return carried

    def trips(self) -> None:
        """Rewrite a Loop or Scan and its backward Scan."""
        trips, back = LoopInterface.of(self.forward), LoopInterface.of(self.backward)
        stack, elements = self.rewrite_forward(trips), scan_elements(trips)
        sequences = self.sequences(back, self.needs[0], stack, elements)
        if not sequences:  # one sequence gives the trip count
            v, (outside, axis, direction) = next(iter(elements.items()))
            sequences[v] = (outside, axis, 1 - direction)
        passed, outputs = [*self.backward.inputs[: back.states], *self.lasts], self.backward.outputs
        self.new_backward = replace(
            self.backward,
            attributes=MappingProxyType(self.backward_attributes(sequences)),
            inputs=(*passed, *(outside for outside, _, _ in sequences.values())),
            outputs=(*outputs[: back.states], *self.initial_state_outputs(), *outputs[back.states :]),
            bodies=MappingProxyType({"body": self.scan_body(self.saving.backward[0], list(sequences))}),
            stream=self.stream(),
            annotations=self.annotations(),
        )

    def backward_attributes(self, sequences: Mapping[int, ScanSource]) -> dict[str, Any]:
        """Attributes of the backward Scan over `sequences`."""
        layouts = [(axis, direction) for _, axis, direction in sequences.values()]
        return {**scan_attributes(self.backward, "input", layouts), "num_scan_inputs": len(sequences)}

    def scan_body(self, sequence: Sequence[int], reads: Sequence[int], more: Sequence[int] = ()) -> Body:
        """A body of the backward Scan that runs the joint nodes `sequence` and carries the states.

        `reads` are its formal inputs after the states, `more` its outputs after the emissions.
        """
        joint, states = self.joints[0], LoopInterface.of(self.backward).states
        formals = [*joint.backward_inputs[:states], *self.carried, *reads]
        results = joint.backward_outputs
        outputs = [*results[:states], *self.firsts, *results[states:], *more]
        return build_body(joint, self.backward, sequence, formals, outputs, joint.captures)

    def rewrite_forward(
        self, trips: LoopInterface, more: Sequence[tuple[int, int]] = (), rows: Mapping[int, int] = MappingProxyType({})
    ) -> dict[int, ScanSource]:
        """Set the forward node, which stacks what all iterations save; value -> its stack.

        `more` are further emissions: (value of the body, outer value); `rows` outputs that are no emissions, by the
        value of the body that needs no stack since it has them.
        """
        joint = self.joints[0]
        outputs, kept, layouts, stack = self.stacks(trips)
        self.name_final_states(outputs)
        there = {*stack, *self.carried, *rows}
        new = [v for v in self.needs[0] if joint.must_be_saved(v) and v not in there]
        for v in new:
            stack[v] = (self._stack(joint, v), 0, 0)
        added = [*((v, stack[v][0]) for v in new), *more]
        self.new_forward = self._forward(
            joint,
            outputs=[
                *outputs[: trips.states],
                *(outputs[trips.states + k] for k in kept),
                *(outside for _, outside in added),
                *rows.values(),
            ],
            made=[
                *joint.forward_outputs[: trips.lead_out + trips.states],
                *(trips.emission(k) for k in kept),
                *(v for v, _ in added),
            ],
            attributes=scan_attributes(self.forward, "output", [*(layouts[k] for k in kept), *((0, 0) for _ in added)]),
        )
        return stack

    def name_final_states(self, outputs: list[int]) -> None:
        """Give carried states a name in `outputs`, the outputs of the forward node; they are `lasts`."""
        for v, i in self.carried.items():
            if outputs[i] == ABSENT:
                value = self.joints[0].graph.values[v]
                outputs[i] = self.value(f"{self.forward.name}/last/{value.name}", value.type)
        self.lasts = [outputs[i] for i in self.carried.values()]

    @property
    def firsts(self) -> list[int]:
        """State inputs of the forward body whose state outputs are carried."""
        return [LoopInterface.of(self.forward).state_in(i) for i in self.carried.values()]

    def initial_state_outputs(self) -> list[int]:
        """Unread outputs of the backward node: the final values of carried states, the state inputs of iteration 0."""
        values = [self.joints[0].graph.values[v] for v in self.firsts]
        return [self.value(f"{self.backward.name}/first/{value.name}", value.type) for value in values]

    def stacks(self, trips: LoopInterface) -> tuple[list[int], list[int], list[tuple[int, int]], dict[int, ScanSource]]:
        """(forward outputs, emissions kept, (axis, direction) of all emissions, value -> its kept stack)."""
        outputs = [*self.forward.outputs, *[ABSENT] * (trips.states + trips.emitted - len(self.forward.outputs))]
        kept = [k for k in range(trips.emitted) if outputs[trips.states + k] not in self.gone]
        layouts = trips.output_layouts()
        stack = {trips.emission(k): (outputs[trips.states + k], *layouts[k]) for k in reversed(kept)}
        return outputs, kept, layouts, {v: source for v, source in stack.items() if source[0] != ABSENT}

    def sequences(
        self,
        back: LoopInterface,
        needs: Sequence[int],
        stack: Mapping[int, ScanSource],
        elements: Mapping[int, ScanSource],
    ) -> dict[int, ScanSource]:
        """Scanned inputs of the backward body: joint value -> its sequence."""
        joint, sequences = self.joints[0], dict[int, ScanSource]()
        layouts = back.input_layouts()
        for k, v in enumerate(joint.backward_inputs[back.states :]):
            source = (back.sequence(k), *layouts[k])
            if v >= joint.forward_values or (v in needs and source[0] not in self.gone):
                sequences.setdefault(v, source)
        for v in needs:
            if (v in stack or v in elements) and v not in self.carried:
                outside, axis, direction = stack[v] if v in stack else elements[v]
                sequences.setdefault(v, (outside, axis, 1 - direction))
        return sequences

    def _if(self) -> None:
        outputs = [v for v in self.forward.outputs if v not in self.gone]
        forward, backward = {}, {}
        for joint, needs, row in zip(self.joints, self.needs, self.saving.backward, strict=True):
            kept = self._kept_outputs(joint)
            forward[joint.key] = self.forward_body(joint, [v for v, _ in kept])
            outside = {**joint.captures, **{v: outer for v, outer in reversed(kept) if v in needs}}
            backward[joint.key] = build_body(joint, self.backward, row, (), joint.backward_outputs, outside)
        self.new_forward = replace(self.forward, outputs=tuple(outputs), bodies=MappingProxyType(forward))
        self.new_backward = replace(
            self.backward, bodies=MappingProxyType(backward), stream=self.stream(), annotations=self.annotations()
        )

    def _kept_outputs(self, joint: JointGraph) -> list[tuple[int, int]]:
        """(value of the body, outer value) of the outputs of a branch or call that stay."""
        pairs = zip(joint.forward_outputs, self.forward.outputs, strict=False)
        return [(v, outer) for v, outer in pairs if outer not in self.gone]

    def _call(self) -> None:
        joint, needs = self.joints[0], self.needs[0]
        kept = self._kept_outputs(joint)
        saved = dict(reversed(kept))
        new = [v for v in needs if joint.must_be_saved(v) and v not in saved]
        for v in new:
            saved[v] = self.value(f"{self.forward.name}/saved/{joint.graph.values[v].name}", joint.graph.values[v].type)
        self.new_forward = self._forward(
            joint,
            outputs=[*(outer for _, outer in kept), *(saved[v] for v in new)],
            made=[*(v for v, _ in kept), *new],
            attributes=self.forward.attributes,
        )
        formals = dict(zip(joint.backward_inputs, self.backward.inputs, strict=True))
        formals = {v: outer for v, outer in formals.items() if v >= joint.forward_values}
        passed = dict(zip(joint.forward_inputs, self.forward.inputs, strict=False))
        formals.update({v: saved[v] if v in saved else passed[v] for v in needs if v in saved or v in passed})
        row, outputs = self.saving.backward[0], joint.backward_outputs
        body = build_body(joint, self.backward, row, list(formals), outputs, joint.captures)
        self.new_backward = replace(
            self.backward,
            inputs=tuple(formals.values()),
            bodies=MappingProxyType({joint.key: body}),
            stream=self.stream(),
            annotations=self.annotations(),
        )

    def _forward(
        self, joint: JointGraph, outputs: Sequence[int], made: Sequence[int], attributes: Mapping[str, Any]
    ) -> Node:
        """The forward node with `outputs`; `made` are the outputs of its body."""
        bodies = MappingProxyType({joint.key: self.forward_body(joint, made)})
        return replace(
            self.forward, outputs=tuple(outputs), attributes=MappingProxyType(dict(attributes)), bodies=bodies
        )

    def forward_body(self, joint: JointGraph, made: Sequence[int]) -> Body:
        return build_body(joint, self.forward, needed_nodes(joint, made), joint.forward_inputs, made, joint.captures)

    def stream(self, more: Sequence[int] = ()) -> str | None:
        """Stream of the backward node: the forward node's if random nodes are recomputed, those of `more` included."""
        is_redrawn = any(
            n < joint.split and is_random(joint.graph.nodes[n])
            for joint, row in zip(self.joints, self.saving.backward, strict=True)
            for n in (*row, *more)
        )
        return (self.forward.stream or self.forward.name) if is_redrawn else self.backward.stream

    def annotations(self) -> Mapping[str, Any]:
        if self.backward.op != "Scan":
            return self.backward.annotations
        is_reversed = not self.forward.annotations.get(LAST_TRIP_FIRST)
        return MappingProxyType({**self.backward.annotations, LAST_TRIP_FIRST: is_reversed})

    def _stack(self, joint: JointGraph, v: int) -> int:
        """A new output of the forward node with a row per iteration. Raises BadGraph for an unbounded trip count."""
        value, count = joint.graph.values[v], trip_count(self.graph.values, self.forward).bound
        if value.type is None or count is None:
            raise BadGraph.one(
                "unknown_trips",
                f"{self.forward.name}.saved",
                f"{value.name}, whose stack has no size",
                "a typed value and a bounded number of trips",
                "set `max_trips`, or save values that are stacked already",
            )
        type = TensorType(value.type.dtype, (count, *value.type.shape))
        return self.value(f"{self.forward.name}/saved/{value.name}", type)

    def value(self, name: str, type: TensorType | None) -> int:
        self.values.append(Value(reserve_name(name, self.names, BACKWARD_SUFFIX), type))
        return len(self.values) - 1


def scan_elements(trips: LoopInterface) -> dict[int, ScanSource]:
    """Element (value of the body) -> its sequence: outer value, axis and direction."""
    return {trips.element(k): (trips.sequence(k), *layout) for k, layout in enumerate(trips.input_layouts())}


def scan_attributes(node: Node, side: str, layouts: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Attributes of a Scan with axes and directions `ways` on `side`, "input" or "output"; of a Loop, unchanged."""
    if node.op != "Scan":
        return dict(node.attributes)
    rows, names = list(layouts), (f"scan_{side}_axes", f"scan_{side}_directions")
    rest = {name: value for name, value in node.attributes.items() if name not in names and value != []}
    return rest | {name: [layout[i] for layout in rows] for i, name in enumerate(names) if rows}
