"""One pair put together anew: what it saves, what its forward node hands out, what its backward node is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from graph.errors import BadGraph
from graph.ir import ABSENT, Body, Graph, Node, TensorType, Value
from graph.ir.names import reserve_name
from graph.loop_remat.body_builder import backward_needs, build_body, needed_nodes
from graph.loop_remat.body_pairs import BodyPair
from graph.loop_remat.joint_body import BACKWARD_SUFFIX, JointGraph, is_random
from graph.ops.control_flow import CALL, LoopInterface, trip_count
from graph.ops.control_flow.execution import LAST_TRIP_FIRST
from graph.ops.control_flow.snapshot_scan import BACKWARD

ScanSource = tuple[int, int, int]  # (value outside, axis, direction)


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """States kept before some trips only; see `control_flow/snapshots.py`."""

    kept: tuple[int, ...]  # trips before which the way out keeps the states, in rows 0, 1, ...
    rows: int
    schedule: tuple[int, ...]  # of the way back

    @property
    def trips(self) -> int:
        """Trips the schedule is for: it ends with the first one and begins with the last."""
        return 1 + max(self.schedule[2::3][i] for i, kind in enumerate(self.schedule[::3]) if kind == BACKWARD)


@dataclass(frozen=True, slots=True)
class TailPolicy:
    """The last trips of a Scan, which save more than the others; see `control_flow/tails.py`."""

    trips: int
    backward: tuple[int, ...]  # nodes of the joint graph as their way back runs them


@dataclass(frozen=True, slots=True)
class SavePolicy:
    """What a pair saves, by what its way back runs; the same for every pair of the same structure."""

    backward: tuple[tuple[int, ...], ...]  # per joint graph its nodes as they run on the way back, repeats allowed
    inner: tuple[
        tuple[SavePolicy | None, ...], ...
    ] = ()  # per joint graph what the pairs inside it save; None: as it is
    snapshots: SnapshotPolicy | None = None  # None: each trip saves what its way back needs
    tail: TailPolicy | None = None  # None: all trips save the same


class PairRewrite:
    """One pair under way. `new_forward`, `new_backward`, `values` and `gone` are the result."""

    def __init__(self, graph: Graph, pair: BodyPair, saving: SavePolicy, joints: Sequence[JointGraph], names: set[str]):
        self.graph, self.pair, self.saving, self.names = graph, pair, saving, names
        self.forward, self.backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
        self.new_forward, self.new_backward = self.forward, self.backward
        self.values, self.gone = list(graph.values), set[int]()
        self.carried: dict[int, int] = {}
        self.joints = joints
        self.needs = [backward_needs(j, row) for j, row in zip(self.joints, saving.backward, strict=True)]
        if self.forward.op == "Loop" and not any(v in self.joints[0].saved for v in self.needs[0]):
            self.needs[0] += tuple(self.joints[0].saved)[:1]  # somebody must say how often

    def rewrite(self) -> None:
        linked = {outer for joint in self.joints for outer in joint.saved.values()}
        wanted = {
            joint.saved[v]
            for joint, needs in zip(self.joints, self.needs, strict=True)
            for v in needs
            if v in joint.saved
        }
        self.gone = linked - wanted
        self.carried = self.find_carried() if self.forward.op in ("Scan", "Loop") else {}
        self.gone |= {self.joints[0].saved[v] for v in self.carried if v in self.joints[0].saved}
        if self.forward.op == "If":
            self._if()
        elif self.forward.op == CALL:
            self._call()
        else:
            self.trips()

    def find_carried(self) -> dict[int, int]:
        """Values that are a state as a trip leaves it, where that state is saved as each trip finds it: its number.

        The way back comes from the trip behind, which found what this one left: it carries that along.
        """
        joint, needs, trips = self.joints[0], set(self.needs[0]), LoopInterface.of(self.forward)
        outputs = self.forward.outputs[trips.states :]
        linked = {*joint.saved.values(), ABSENT}
        readable = {trips.emission(k) for k, v in enumerate(outputs) if v not in linked}
        found: dict[int, int] = {}
        for i in range(trips.states):
            v = trips.state_out(i)
            if v in needs and v not in readable and v not in joint.states and trips.state_in(i) in needs:
                found.setdefault(v, i)
        return found

    def trips(self) -> None:
        """The pair as a Loop or Scan and the Scan that goes back."""
        joint, needs, trips = self.joints[0], self.needs[0], LoopInterface.of(self.forward)
        outputs, stack = self.way_out(trips, ())
        elements = scan_elements(trips)
        back = LoopInterface.of(self.backward)
        sequences = self.sequences(back, needs, stack, elements)
        if not sequences:  # somebody must say how often
            v, (outside, axis, direction) = next(iter(elements.items()))
            sequences[v] = (outside, axis, 1 - direction)
        lasts = [outputs[i] for i in self.carried.values()]
        inputs = [*self.backward.inputs[: back.states], *lasts, *(outside for outside, _, _ in sequences.values())]
        ways_in = [(axis, direction) for _, axis, direction in sequences.values()]
        attributes = {**scan_attributes(self.backward, "input", ways_in), "num_scan_inputs": len(sequences)}
        formals = [*joint.backward_inputs[: back.states], *self.carried, *sequences]
        firsts = [trips.state_in(i) for i in self.carried.values()]
        ends, made = joint.backward_outputs, self.backward.outputs
        self.new_backward = replace(
            self._backward(joint, formals, inputs, attributes, [*ends[: back.states], *firsts, *ends[back.states :]]),
            outputs=(*made[: back.states], *self.initial_state_outputs(joint, firsts), *made[back.states :]),
        )

    def way_out(self, trips: LoopInterface, more: Sequence[tuple[int, int]]) -> tuple[list[int], dict[int, ScanSource]]:
        """Writes the forward node: (its outputs before new ones, value -> its stack).

        `more` are emissions beside what the way back needs of all trips: (value of the body, value outside).
        """
        joint = self.joints[0]
        outputs, stays, ways, stack = self.stacks(trips)
        self.name_final_states(outputs)
        new = [v for v in self.needs[0] if joint.must_be_saved(v) and v not in stack and v not in self.carried]
        for v in new:
            stack[v] = (self._stack(joint, v), 0, 0)
        added = [(v, stack[v][0]) for v in new] + list(more)
        self.new_forward = self._forward(
            joint,
            outputs=[
                *outputs[: trips.states],
                *(outputs[trips.states + k] for k in stays),
                *(outside for _, outside in added),
            ],
            made=[
                *joint.forward_outputs[: trips.lead_out + trips.states],
                *(trips.emission(k) for k in stays),
                *(v for v, _ in added),
            ],
            attributes=scan_attributes(self.forward, "output", [*(ways[k] for k in stays), *((0, 0) for _ in added)]),
        )
        return outputs, stack

    def name_final_states(self, outputs: list[int]) -> None:
        """Carried states are handed out by the forward node, whose outputs these are."""
        for v, i in self.carried.items():
            if outputs[i] == ABSENT:
                value = self.joints[0].graph.values[v]
                outputs[i] = self.value(f"{self.forward.name}/last/{value.name}", value.type)

    def initial_state_outputs(self, joint: JointGraph, firsts: Sequence[int]) -> list[int]:
        """Outputs for carried states as the way back leaves them: what the first trip found. Nobody reads them."""
        values = [joint.graph.values[v] for v in firsts]
        return [self.value(f"{self.backward.name}/first/{value.name}", value.type) for value in values]

    def stacks(self, trips: LoopInterface) -> tuple[list[int], list[int], list[tuple[int, int]], dict[int, ScanSource]]:
        """(forward node's outputs, emissions that stay, ways of all emissions, value -> its stack that stays)."""
        outputs = [*self.forward.outputs, *[ABSENT] * (trips.states + trips.emitted - len(self.forward.outputs))]
        stays = [k for k in range(trips.emitted) if outputs[trips.states + k] not in self.gone]
        ways = list(zip(trips.output_axes(), trips.output_directions(), strict=True))
        stack = {trips.emission(k): (outputs[trips.states + k], *ways[k]) for k in reversed(stays)}
        return outputs, stays, ways, {v: there for v, there in stack.items() if there[0] != ABSENT}

    def sequences(
        self,
        back: LoopInterface,
        needs: Sequence[int],
        stack: Mapping[int, ScanSource],
        elements: Mapping[int, ScanSource],
    ) -> dict[int, ScanSource]:
        """What the backward body is given element by element: joint value -> where it comes from."""
        joint, sequences = self.joints[0], dict[int, ScanSource]()
        for k, v in enumerate(joint.backward_inputs[back.states :]):
            way = (back.sequence(k), back.input_axes()[k], back.input_directions()[k])
            if v >= joint.forward_values or (v in needs and way[0] not in self.gone):
                sequences.setdefault(v, way)
        for v in needs:
            if (v in stack or v in elements) and v not in self.carried:
                outside, axis, direction = stack[v] if v in stack else elements[v]
                sequences.setdefault(v, (outside, axis, 1 - direction))
        return sequences

    def _if(self) -> None:
        outputs = [v for v in self.forward.outputs if v not in self.gone]
        stays = [p for p, v in enumerate(self.forward.outputs) if v not in self.gone]
        forward, backward = {}, {}
        for joint, needs, row in zip(self.joints, self.needs, self.saving.backward, strict=True):
            made = [joint.forward_outputs[p] for p in stays]
            forward[joint.key] = self.forward_body(joint, made)
            there = {joint.forward_outputs[p]: self.forward.outputs[p] for p in reversed(stays)}
            outside = {**joint.captures, **{v: outer for v, outer in there.items() if v in needs}}
            backward[joint.key] = build_body(joint, self.backward, row, (), joint.backward_outputs, outside)
        self.new_forward = replace(self.forward, outputs=tuple(outputs), bodies=MappingProxyType(forward))
        self.new_backward = replace(
            self.backward, bodies=MappingProxyType(backward), stream=self.stream(), annotations=self.annotations()
        )

    def _call(self) -> None:
        joint, needs = self.joints[0], self.needs[0]
        stays = [p for p, v in enumerate(self.forward.outputs) if v not in self.gone]
        there = {joint.forward_outputs[p]: self.forward.outputs[p] for p in reversed(stays)}
        new = [v for v in needs if joint.must_be_saved(v) and v not in there]
        for v in new:
            there[v] = self.value(f"{self.forward.name}/saved/{joint.graph.values[v].name}", joint.graph.values[v].type)
        self.new_forward = self._forward(
            joint,
            outputs=[*(self.forward.outputs[p] for p in stays), *(there[v] for v in new)],
            made=[*(joint.forward_outputs[p] for p in stays), *new],
            attributes=self.forward.attributes,
        )
        formals = dict(zip(joint.backward_inputs, self.backward.inputs, strict=True))
        formals = {v: outer for v, outer in formals.items() if v >= joint.forward_values}
        given = dict(zip(joint.forward_inputs, self.forward.inputs, strict=False))
        formals.update({v: there[v] if v in there else given[v] for v in needs if v in there or v in given})
        self.new_backward = self._backward(
            joint, list(formals), list(formals.values()), self.backward.attributes, joint.backward_outputs
        )

    def _forward(
        self, joint: JointGraph, outputs: Sequence[int], made: Sequence[int], attributes: Mapping[str, Any]
    ) -> Node:
        """The forward node with these outputs and outputs of its body."""
        bodies = MappingProxyType({joint.key: self.forward_body(joint, made)})
        return replace(
            self.forward, outputs=tuple(outputs), attributes=MappingProxyType(dict(attributes)), bodies=bodies
        )

    def forward_body(self, joint: JointGraph, made: Sequence[int]) -> Body:
        return build_body(joint, self.forward, needed_nodes(joint, made), joint.forward_inputs, made, joint.captures)

    def _backward(
        self,
        joint: JointGraph,
        formals: Sequence[int],
        inputs: Sequence[int],
        attributes: Mapping[str, Any],
        outputs: Sequence[int],
    ) -> Node:
        body = build_body(joint, self.backward, self.saving.backward[0], formals, outputs, joint.captures)
        return replace(
            self.backward,
            inputs=tuple(inputs),
            attributes=MappingProxyType(dict(attributes)),
            bodies=MappingProxyType({joint.key: body}),
            stream=self.stream(),
            annotations=self.annotations(),
        )

    def stream(self, more: Sequence[int] = ()) -> str | None:
        """The forward node's draws are drawn again where they are made again; `more` runs beside, in the last body."""
        again = any(
            n < joint.split and is_random(joint.graph.nodes[n])
            for joint, row in zip(self.joints, self.saving.backward, strict=True)
            for n in (*row, *more)
        )
        return (self.forward.stream or self.forward.name) if again else self.backward.stream

    def annotations(self) -> Mapping[str, Any]:
        if self.backward.op != "Scan":
            return self.backward.annotations
        turned = not self.forward.annotations.get(LAST_TRIP_FIRST)
        return MappingProxyType({**self.backward.annotations, LAST_TRIP_FIRST: turned})

    def _stack(self, joint: JointGraph, v: int) -> int:
        """A new output of the forward node with a row a trip. Raises BadGraph where the trips are not bounded."""
        value, count = joint.graph.values[v], trip_count(self.graph.values, self.forward).most
        if value.type is None or count is None:
            raise BadGraph.one(
                "unknown_trips",
                f"{self.forward.name}.saved",
                f"{value.name}, of which no stack has a size",
                "a typed value and a bounded number of trips",
                "say `max_trips`, or save what is stacked already",
            )
        type = TensorType(value.type.dtype, (count, *value.type.shape))
        return self.value(f"{self.forward.name}/saved/{value.name}", type)

    def value(self, name: str, type: TensorType | None) -> int:
        self.values.append(Value(reserve_name(name, self.names, BACKWARD_SUFFIX), type))
        return len(self.values) - 1


def scan_elements(trips: LoopInterface) -> dict[int, ScanSource]:
    """Value of the body that is an element -> the sequence outside, its axis and direction."""
    ways = zip(trips.input_axes(), trips.input_directions(), strict=True)
    return {trips.element(k): (trips.sequence(k), axis, direction) for k, (axis, direction) in enumerate(ways)}


def scan_attributes(node: Node, side: str, ways: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Attributes of a Scan with an axis and a direction for each sequence on one side; a Loop has neither."""
    if node.op != "Scan":
        return dict(node.attributes)
    rows, names = list(ways), (f"scan_{side}_axes", f"scan_{side}_directions")
    rest = {name: given for name, given in node.attributes.items() if name not in names and given != []}
    return rest | {name: [way[i] for way in rows] for i, name in enumerate(names) if rows}
