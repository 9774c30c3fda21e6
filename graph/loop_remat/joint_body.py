"""One trip of a forward body followed by one trip of the backward body, as one graph.

    forward body   x, h ─▶ a ─▶ s ─▶ h'       what the trip emits for the way back is what the way
    backward body          s, dh' ─▶ grad/a   back reads: one value, s, in the joint graph

Values of the forward body come first and keep their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from graph.ir import ABSENT, Body, Effect, Graph, Node, Phase, Role, Value, walk
from graph.ir.names import reserve_name
from graph.ir.renumber import remap_node
from graph.loop_remat.body_pairs import BodyPair
from graph.ops.control_flow import CALL, LoopInterface
from graph.ops.registry import find_op

#: Bodies by name, of forward and backward node alike.
ONE_BODY, BRANCHES = ("body",), ("then_branch", "else_branch")
#: Behind the name of what stands in a joint body a second time, on the way back.
BACKWARD_SUFFIX = "/back"


@dataclass(frozen=True, eq=False, slots=True)
class JointGraph:
    """The joint graph of one body of a pair; ids are its own unless said otherwise."""

    key: str  # of the body in both nodes
    graph: Graph  # the forward body's nodes, then the backward body's
    split: int  # nodes of the forward body
    forward_values: int  # values of the forward body
    states: frozenset[int]  # formal inputs of the forward body that the backward node cannot be given anew
    saved: Mapping[int, int]  # value -> droppable output of the forward node it is saved in, outside
    slots: frozenset[int] | None  # values that can be saved; None: all that cross
    emitted: frozenset[int]  # values that come to the backward body in outputs others read too
    captures: Mapping[int, int]  # value -> value outside
    forward_inputs: tuple[int, ...]  # formal inputs of the forward body
    forward_outputs: tuple[int, ...]
    backward_inputs: tuple[int, ...]  # formal inputs of the backward body
    backward_outputs: tuple[int, ...]

    def savable(self, v: int) -> bool:
        """Whether a value that crosses can be saved."""
        return self.slots is None or v in self.slots

    def must_be_saved(self, v: int) -> bool:
        """Whether a value must be saved to be there on the way back: it is made, or is a state."""
        return v < self.forward_values and (v in self.states or self.graph.values[v].role is Role.ACTIVATION)


def joint_graphs(graph: Graph, pair: BodyPair) -> tuple[JointGraph, ...]:
    """The joint graph of each body; one but for an If, which has one a branch.

    A pair whose backward node lacks a body of the forward one has none.
    """
    forward, backward = graph.nodes[pair.forward], graph.nodes[pair.backward]
    keys = BRANCHES if forward.op == "If" else ONE_BODY
    if not all(key in node.bodies for key in keys for node in (forward, backward)):
        return ()
    return tuple(_Joining(graph, pair, key).joint() for key in keys)


@dataclass(slots=True)
class _Joining:
    graph: Graph
    pair: BodyPair
    key: str
    values: list[Value] = field(default_factory=list)
    place: dict[int, int] = field(default_factory=dict)  # value of the backward body -> joint value
    captures: dict[int, int] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    emitted: set[int] = field(default_factory=set)

    @property
    def forward(self) -> Node:
        return self.graph.nodes[self.pair.forward]

    @property
    def backward(self) -> Node:
        return self.graph.nodes[self.pair.backward]

    def joint(self) -> JointGraph:
        first, second = self.forward.bodies[self.key], self.backward.bodies[self.key]
        given = {*first.graph.inputs, *(inner for inner, _ in first.captures)}
        self.values = [
            replace(value, role=Role.INPUT) if v in given else value for v, value in enumerate(first.graph.values)
        ]
        self.captures = dict(first.captures)
        self._unify(first, second)
        self._add_rest(second)
        nodes = [*self._forward_nodes(first, second), *self._backward_nodes(first, second)]
        inputs = tuple(v for v, value in enumerate(self.values) if value.role is Role.INPUT)
        ends = tuple(self.place[v] for v in second.graph.outputs)
        whole = Graph(
            f"{self.forward.name} and back",
            tuple(self.values),
            tuple(nodes),
            tuple(dict.fromkeys((*first.graph.outputs, *ends))),
            inputs,
            first.graph.opset,
        )
        return JointGraph(
            self.key,
            whole,
            len(first.graph.nodes),
            len(first.graph.values),
            frozenset(self._states(first)),
            MappingProxyType(self.saved),
            self._slots(first),
            frozenset(self.emitted),
            MappingProxyType(self.captures),
            first.graph.inputs,
            first.graph.outputs,
            tuple(self.place[v] for v in second.graph.inputs),
            ends,
        )

    def _states(self, first: Body) -> Iterator[int]:
        """Formal inputs that hold something else in each trip and come from no sequence."""
        if self.forward.op in ("Scan", "Loop"):
            trips = LoopInterface.of(self.forward)
            yield from first.graph.inputs[: trips.lead + trips.states]

    def _slots(self, first: Body) -> frozenset[int] | None:
        """An If hands out as many values in both branches, so none can be added in one."""
        return frozenset(first.graph.outputs) if self.forward.op == "If" else None

    def _unify(self, first: Body, second: Body) -> None:
        """Formal inputs and captures of the backward body that are values of the forward body."""
        links = {"If": self._of_branch, CALL: self._of_call}.get(self.forward.op, self._of_trips)
        for inner, v, outer in links(first, second):
            if first.graph.values[v].type != second.graph.values[inner].type:
                continue
            self.place[inner] = v
            if outer in self.pair.droppable:
                self.saved[v] = outer
            elif outer in self.forward.outputs:
                self.emitted.add(v)
        inside = {outer: inner for inner, outer in first.captures}
        for inner, outer in second.captures:
            if outer in inside:
                self.place.setdefault(inner, inside[outer])

    def _of_trips(self, first: Body, second: Body) -> Iterator[tuple[int, int, int]]:
        """(formal input of the backward body, value of the forward body, outside) of sequences in step."""
        one, two = LoopInterface.of(self.forward), LoopInterface.of(self.backward)
        stacks = {v: k for k, v in enumerate(self.forward.outputs[one.states :]) if v != ABSENT}
        sequences = {one.sequence(k): k for k in range(one.scanned)}
        for k, (axis, direction) in enumerate(zip(two.input_axes(), two.input_directions(), strict=True)):
            outer = two.sequence(k)
            if outer in stacks:
                at = stacks[outer]
                same = axis == one.output_axes()[at] and direction == 1 - one.output_directions()[at]
                v = one.emission(at)
            elif outer in sequences:
                at = sequences[outer]
                same = axis == one.input_axes()[at] and direction == 1 - one.input_directions()[at]
                v = one.element(at)
            else:
                continue
            if same:
                yield two.element(k), v, outer

    def _of_branch(self, first: Body, second: Body) -> Iterator[tuple[int, int, int]]:
        made = dict(zip(self.forward.outputs, first.graph.outputs, strict=False))
        for inner, outer in second.captures:
            if outer in made and outer != ABSENT:
                yield inner, made[outer], outer

    def _of_call(self, first: Body, second: Body) -> Iterator[tuple[int, int, int]]:
        made = dict(zip(self.forward.inputs, first.graph.inputs, strict=False))
        made.update(zip(self.forward.outputs, first.graph.outputs, strict=False))
        captured = [(inner, outer) for inner, outer in second.captures]
        for inner, outer in [*zip(second.graph.inputs, self.backward.inputs, strict=False), *captured]:
            if outer in made and outer != ABSENT:
                yield inner, made[outer], outer

    def _add_rest(self, second: Body) -> None:
        """The other values of the backward body, under names of their own."""
        names = {value.name for value in self.values}
        outside = dict(second.captures)
        given = {*second.graph.inputs, *outside}
        for v, value in enumerate(second.graph.values):
            if v in self.place:
                continue
            self.place[v] = len(self.values)
            role = Role.INPUT if v in given else value.role
            self.values.append(replace(value, name=reserve_name(value.name, names, BACKWARD_SUFFIX), role=role))
            if v in outside:
                self.captures[self.place[v]] = outside[v]

    def _forward_nodes(self, first: Body, second: Body) -> Iterator[Node]:
        draws_back = any(is_random(node) for node in second.graph.nodes)
        for node in first.graph.nodes:
            random = is_random(node)
            # The backward node draws under the forward one's name, trip by trip: the same stream, the same numbers.
            stream = (node.stream or node.name) if random and not draws_back else node.stream
            never = (random and draws_back) or is_unrepeatable(node)
            yield replace(node, phase=Phase.FORWARD, stream=stream, recompute="never" if never else node.recompute)

    def _backward_nodes(self, first: Body, second: Body) -> Iterator[Node]:
        names, before = {node.name for node in first.graph.nodes}, len(first.graph.nodes)
        place = self.place
        for node in second.graph.nodes:
            yield remap_node(
                node,
                place.__getitem__,
                name=reserve_name(node.name, names, BACKWARD_SUFFIX),
                phase=Phase.BACKWARD,
                after=tuple(before + n for n in node.after),
            )


def is_random(node: Node) -> bool:
    """Whether the node, or one in its bodies, draws numbers."""
    return _has(node, Effect.RANDOM)


def is_unrepeatable(node: Node) -> bool:
    """Whether the node, or one in its bodies, does something that is not to be done twice."""
    return any(_has(node, effect) for effect in (Effect.ONCE, Effect.COLLECTIVE, Effect.UNSTABLE))


def _has(node: Node, effect: Effect) -> bool:
    nested = [inner for body in node.bodies.values() for graph in walk(body.graph) for inner in graph.nodes]
    for one in (node, *nested):
        record = find_op(one.op)
        if (one.effect or (record.effect if record is not None else Effect.PURE)) is effect:
            return True
    return False
