"""One iteration of a forward body followed by one iteration of the backward body, as one graph.

    forward body   x, h ─▶ a ─▶ s ─▶ h'       the forward trip emits s, the backward trip reads it:
    backward body          s, dh' ─▶ grad/a   one value in the joint graph

Values of the forward body come first and keep their ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec.structs import replace

from graph.ir import ABSENT, Body, Effect, Graph, Node, Phase, Role, Value, walk
from graph.ir.names import reserve_name
from graph.ir.renumber import remap_node
from graph.loop_remat.body_pairs import BodyPair
from graph.ops.control_flow import CALL, LoopInterface
from graph.ops.registry import find_op

#: Names of bodies, equal in forward and backward nodes.
ONE_BODY, BRANCHES = ("body",), ("then_branch", "else_branch")
#: Suffix of names that occur a second time in a joint body, in its backward part.
BACKWARD_SUFFIX = "/back"


@dataclass(frozen=True, eq=False, slots=True)
class JointGraph:
    """The joint graph of one body of a pair; ids refer to it unless noted."""

    key: str  # name of the body in both nodes
    graph: Graph  # the forward body's nodes, then the backward body's
    split: int  # number of nodes of the forward body
    forward_values: int  # number of values of the forward body
    states: frozenset[int]  # formal inputs of the forward body that vary per iteration and are no sequence elements
    saved: Mapping[int, int]  # value -> outer value: the droppable output of the forward node that saves it
    slots: frozenset[int] | None  # values that can be saved; None: all that the backward part reads
    emitted: frozenset[int]  # values passed to the backward body in outputs that other nodes read too
    captures: Mapping[int, int]  # value -> outer value
    forward_inputs: tuple[int, ...]  # formal inputs of the forward body
    forward_outputs: tuple[int, ...]
    backward_inputs: tuple[int, ...]  # formal inputs of the backward body
    backward_outputs: tuple[int, ...]

    def savable(self, v: int) -> bool:
        """True if a value read by the backward part can be saved."""
        return self.slots is None or v in self.slots

    def must_be_saved(self, v: int) -> bool:
        """True if the backward part has a value only if it is saved: it is computed, or is a state."""
        return v < self.forward_values and (v in self.states or self.graph.values[v].role is Role.ACTIVATION)


def joint_graphs(graph: Graph, pair: BodyPair) -> tuple[JointGraph, ...]:
    """The joint graph of each body: one per branch of an If, else one.

    A pair whose backward node lacks a body of the forward node has none.

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
        outer = {*first.graph.inputs, *(inner for inner, _ in first.captures)}
        self.values = [
            replace(value, role=Role.INPUT) if v in outer else value for v, value in enumerate(first.graph.values)
        ]
        self.captures = dict(first.captures)
        self._unify(first, second)
        self._add_rest(second)
        nodes = [*self._forward_nodes(first, second), *self._backward_nodes(first, second)]
        inputs = tuple(v for v, value in enumerate(self.values) if value.role is Role.INPUT)
        results = tuple(self.place[v] for v in second.graph.outputs)
        graph = Graph(
            f"{self.forward.name} and back",
            tuple(self.values),
            tuple(nodes),
            tuple(dict.fromkeys((*first.graph.outputs, *results))),
            inputs,
            first.graph.opset,
        )
        return JointGraph(
            self.key,
            graph,
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
            results,
        )

    def _states(self, first: Body) -> Iterator[int]:
        """Formal inputs that vary per iteration and are no sequence elements."""
        if self.forward.op in ("Scan", "Loop"):
            trips = LoopInterface.of(self.forward)
            yield from first.graph.inputs[: trips.lead + trips.states]

    def _slots(self, first: Body) -> frozenset[int] | None:
        """Values that can be saved: for an If only those already saved, since both branches have the same outputs."""
        return frozenset(first.graph.outputs) if self.forward.op == "If" else None

    def _unify(self, first: Body, second: Body) -> None:
        """Identify formal inputs and captures of the backward body with values of the forward body."""
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
        """(formal input of the backward body, value of the forward body, outer value) of common sequences."""
        one, two = LoopInterface.of(self.forward), LoopInterface.of(self.backward)
        stacks = {v: k for k, v in enumerate(self.forward.outputs[one.states :]) if v != ABSENT}
        sequences = {one.sequence(k): k for k in range(one.scanned)}
        for k, (axis, direction) in enumerate(two.input_layouts()):
            outer = two.sequence(k)
            if outer in stacks:
                at = stacks[outer]
                layout, v = one.output_layouts()[at], one.emission(at)
            elif outer in sequences:
                at = sequences[outer]
                layout, v = one.input_layouts()[at], one.element(at)
            else:
                continue
            if layout == (axis, 1 - direction):
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
        """Add the remaining values of the backward body, with unique names."""
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
            # The backward node draws with the forward node's stream, iteration by iteration: the same numbers.
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
    """True if the node, or one in its bodies, draws random numbers."""
    return _has(node, Effect.RANDOM)


def is_unrepeatable(node: Node) -> bool:
    """True if the node, or one in its bodies, must not run twice."""
    return any(_has(node, effect) for effect in (Effect.ONCE, Effect.COLLECTIVE, Effect.UNSTABLE))


def _has(node: Node, effect: Effect) -> bool:
    nested = [inner for body in node.bodies.values() for graph in walk(body.graph) for inner in graph.nodes]
    for one in (node, *nested):
        record = find_op(one.op)
        if (one.effect or (record.effect if record is not None else Effect.PURE)) is effect:
            return True
    return False
