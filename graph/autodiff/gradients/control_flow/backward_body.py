"""Differentiate a body and split the result into a forward body and a backward body.

    body      x ─▶ a ─▶ h ─▶ y             differentiated as a graph; its backward pass reads h
    forward   x ─▶ a ─▶ h ─▶ y, h          h is saved: an output of the node around the body
    backward  dy, h ─▶ grad/a ─▶ dx        a body with the inputs dy and h

Not saved: formal inputs that the backward node can read, captures, constants, and views of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec.structs import replace

from graph.analysis.aliasing import is_view
from graph.autodiff.gradients.spec import GradientSpec
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate, NoGradient, quoted
from graph.ir import ABSENT, Body, Graph, Node, Phase, Role, TensorType, Value
from graph.ir.renumber import remap_captures, remap_node
from graph.ops.registry.registry import find_op

EMPTY_IDS: Mapping[int, int] = MappingProxyType({})

#: append_gradients(builder, graph, spec) -> (wanted value, its gradient) pairs
DifferentiateBody = Callable[[Builder, Graph, GradientSpec], list[tuple[int, int]]]


@dataclass(slots=True)
class BackwardBody:
    """A backward body under construction. Dicts map values of the forward body to ids of `body`."""

    forward: Graph  # the forward body with its old outputs; optional node outputs added for the backward pass
    body: Builder  # nodes of the backward body
    heads: dict[int, int]  # output position of the forward body -> its incoming gradient
    results: dict[int, int]  # wanted value -> its gradient
    formals: dict[int, int] = field(default_factory=dict)  # formal input of the forward body
    captures: dict[int, int] = field(default_factory=dict)  # captured value
    saved: dict[int, int] = field(default_factory=dict)  # saved value

    def reads(self, v: int) -> bool:
        """True when the backward body reads its value `v` or returns it as a gradient."""
        return v in self.results.values() or any(v in node.reads for node in self.body.nodes)

    def as_body(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        outside: Mapping[int, int],
        more: Mapping[int, int] = EMPTY_IDS,
    ) -> Body:
        """The body with these formal inputs and outputs.

        `outside` maps captures of the forward body to values of the outer graph; `more` adds captures, by id here.
        """
        b = self.body
        captures = {**more, **{here: outside[v] for v, here in self.captures.items()}}
        unread = {v for v in self.heads.values() if v not in inputs and v not in captures}
        place = {v: i for i, v in enumerate(v for v in range(len(b.values)) if v not in unread)}
        place[ABSENT] = ABSENT
        graph = Graph(
            b.name,
            tuple(b.values[v] for v in place if v != ABSENT),
            tuple(remap_node(node, place.__getitem__) for node in b.nodes) if unread else tuple(b.nodes),
            tuple(place[v] for v in outputs),
            tuple(place[v] for v in inputs),
            b.opset,
        )
        return Body(graph, tuple((place[here], v) for here, v in captures.items()))

    def emit(self, prefix: str) -> Emit:
        return Emit(self.body, prefix, Phase.BACKWARD)


def build_backward_body(
    key: str,
    body: Body,
    heads: Sequence[int],
    wanted: Sequence[int],
    differentiate: DifferentiateBody,
    available: Sequence[int],
) -> BackwardBody:
    """The backward pass of the body `key` for incoming gradients of its outputs at positions `heads`.

    `wanted`: values of the body. `available`: formal inputs that the backward node can read, so need no saving.
    Raises CannotDifferentiate for a value without a type, NoGradient for an inner node without a gradient.
    """
    graph = body.graph
    builder = Builder.from_graph(graph)
    incoming = {}
    for position in heads:
        v = graph.outputs[position]
        incoming[position] = builder.value(f"grad/{graph.values[v].name}", require_type(graph, v), Role.INPUT)
    spec = GradientSpec(tuple((graph.outputs[p], h) for p, h in incoming.items()), tuple(dict.fromkeys(wanted)))
    try:
        pairs = differentiate(builder, graph, spec)
    except NoGradient as error:
        raise error.inside(f"bodies.{key}.") from None
    return _BodySplitter(body, builder, incoming, available).split(pairs)


def require_type(graph: Graph, v: int) -> TensorType:
    """Type of a value of a body. Raises CannotDifferentiate when it has none."""
    type = graph.values[v].type
    if type is None:
        raise CannotDifferentiate(
            f"{quoted(graph.values[v].name)} in a body has no type", "declare its shape and dtype"
        )
    return type


class _BodySplitter:
    """Moves the backward nodes from a differentiated body (`joint`) to the backward body (`split_body`)."""

    def __init__(self, body: Body, joint: Builder, heads: Mapping[int, int], available: Sequence[int]):
        self.graph, self.joint = body.graph, joint
        self.count = len(body.graph.nodes)
        self.captured, self.available = {inner for inner, _ in body.captures}, frozenset(available)
        self.producer = {v: node for node in joint.nodes[: self.count] for v in node.writes}
        self.place: dict[int, int] = {}  # value of `joint` -> value of the backward body
        backward = Builder(f"grad/{body.graph.name}", joint.opset)
        self.split_body = BackwardBody(body.graph, backward, {}, {})
        for position, v in heads.items():
            value = joint.values[v]
            self.split_body.heads[position] = self.place[v] = backward.value(value.name, value.type, Role.INPUT)

    def split(self, pairs: Sequence[tuple[int, int]]) -> BackwardBody:
        backward, split_body = self.joint.nodes[self.count :], self.split_body
        number: dict[int, int] = {}
        for n, node in enumerate(backward, self.count):
            moved = self._moved(node, number)
            number[n] = len(split_body.body.nodes)
            split_body.body.append(moved)
        split_body.results = {v: self._map(gradient) for v, gradient in pairs}
        split_body.forward = self._forward()
        return split_body

    def _forward(self) -> Graph:
        """The forward body with the optional outputs that the backward pass added, under dense ids."""
        nodes, values = tuple(self.joint.nodes[: self.count]), list(self.graph.values)
        place = {v: v for v in range(len(values))}
        for node in nodes:
            for v in node.writes:
                if v not in place:
                    place[v] = len(values)
                    values.append(self.joint.values[v])
        nodes = tuple(
            node
            if max(node.outputs, default=ABSENT) < len(self.graph.values)
            else replace(node, outputs=tuple(ABSENT if v == ABSENT else place[v] for v in node.outputs))
            for node in nodes
        )
        self.split_body.saved = {place[v]: here for v, here in self.split_body.saved.items()}
        return replace(self.graph, values=tuple(values), nodes=nodes)

    def _moved(self, node: Node, number: Mapping[int, int]) -> Node:
        """A backward node with its operands mapped to the backward body."""
        record = find_op(node.op)
        shapes = record.shape_only if record is not None and not node.bodies else ()
        inputs = tuple([self._shaped(v) if i in shapes else self._map(v) for i, v in enumerate(node.inputs)])
        bodies = {key: remap_captures(inner, self._map) for key, inner in node.bodies.items()}
        outputs = tuple([ABSENT if v == ABSENT else self._copied(v) for v in node.outputs])
        reads = node.gradient_reads
        return replace(
            node,
            inputs=inputs,
            outputs=outputs,
            bodies=MappingProxyType(bodies),
            after=tuple(number[n] for n in node.after if n in number),
            gradient_reads=None if reads is None else tuple(self._map(v) for v in reads),
        )

    def _map(self, v: int) -> int:
        """Id in the backward body of a value of the joint graph; adds it on first use."""
        if v == ABSENT:
            return ABSENT
        if v not in self.place:
            self.place[v] = self._import(v)
        return self.place[v]

    def _import(self, v: int) -> int:
        split_body, value = self.split_body, self.joint.values[v]
        if value.data is not None:
            return self._copied(v)
        if v in self.producer:
            return self._recomputed_view(v) if self._is_free_view(v) else self._saved(v)
        if v in self.captured:
            split_body.captures[v] = self._given(value)
            return split_body.captures[v]
        if v in self.available:
            split_body.formals[v] = self._given(value)
            return split_body.formals[v]
        return self._saved(v)

    def _is_free_view(self, v: int) -> bool:
        """True for a view whose shape operands are not computed: recomputing it is free."""
        node = self.producer.get(v)
        return (
            node is not None
            and is_view(self.graph, node)
            and not any(other in self.producer for other in node.inputs[1:])
        )

    def _recomputed_view(self, v: int) -> int:
        """The view recomputed in the backward body, with the views it is based on."""
        chain = [v]
        while self._is_free_view(source := self.producer[chain[-1]].inputs[0]) and source not in self.place:
            chain.append(source)
        for view in reversed(chain):
            node, values = self.producer[view], self.joint.values
            copies = self.split_body.body.node(
                node.op,
                [self._map(source) for source in node.inputs],
                name=node.name,
                outputs=[None if w == ABSENT else values[w].name for w in node.outputs],
                types=[None if w == ABSENT else values[w].type for w in node.outputs],
                attributes=node.attributes,
                phase=Phase.BACKWARD,
                views=node.views,
            )
            self.place.update((w, here) for w, here in zip(node.outputs, copies, strict=True) if w != ABSENT)
        return self.place[v]

    def _saved(self, v: int) -> int:
        typed_value = self.joint.values[v]
        if typed_value.type is None:
            raise CannotDifferentiate(
                f"{quoted(typed_value.name)}, read by the backward body, has no type", "declare its shape and dtype"
            )
        self.split_body.saved[v] = self._given(typed_value)
        return self.split_body.saved[v]

    def _shaped(self, v: int) -> int:
        """Id of a value of which only the shape is read: the value itself if available without saving, else zeros."""
        if v == ABSENT or v in self.place or v not in self.producer:
            return self._map(v)
        return (
            self.split_body.emit(f"{self.joint.values[v].name}/shape").zeros(require_type(self._joint_values(), v)).id
        )

    def _joint_values(self) -> Graph:
        return Graph("", tuple(self.joint.values), ())

    def _given(self, value: Value) -> int:
        return self.split_body.body.value(value.name, value.type, Role.INPUT)

    def _copied(self, v: int) -> int:
        value = self.joint.values[v]
        fields = {"bytes": value.bytes, "fixed_bytes": value.fixed_bytes, "annotations": value.annotations}
        self.place[v] = self.split_body.body.value(value.name, value.type, value.role, data=value.data, **fields)
        return self.place[v]
