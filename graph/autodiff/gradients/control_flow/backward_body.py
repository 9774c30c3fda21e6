"""The gradient of a body, taken apart into what stays in the forward body and a backward body of its own.

    body      x ─▶ a ─▶ h ─▶ y             differentiated as a graph, h read by the backward part
    forward   x ─▶ a ─▶ h ─▶ y, h          h is saved: the node around the body hands it out
    backward  dy, h ─▶ grad/a ─▶ dx        the other way: a graph that is given dy and h

Not saved are formal inputs that are there again, captures, constants, and views of such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from graph.analysis.aliasing import is_view
from graph.autodiff.gradients.spec import GradientSpec
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate, NoGradient, quoted
from graph.ir import ABSENT, Body, Graph, Node, Phase, Role, TensorType, Value
from graph.ir.renumber import remap_captures, remap_node
from graph.ops.registry.registry import find_op

EMPTY_IDS: Mapping[int, int] = MappingProxyType({})

#: append_gradients(builder, graph, question) -> (wanted value, its gradient) pairs
DifferentiateBody = Callable[[Builder, Graph, GradientSpec], list[tuple[int, int]]]


@dataclass(slots=True)
class BackwardBody:
    """A backward body under way, and what it asks of the forward one. Ids are of `body` unless said otherwise."""

    forward: Graph  # the body, its outputs as they were, with what the backward part wants made
    body: Builder  # nodes of the backward part
    heads: dict[int, int]  # output position of the forward body -> its incoming gradient
    results: dict[int, int]  # wanted value of the forward body -> its gradient
    formals: dict[int, int] = field(default_factory=dict)  # formal input of the forward body -> the same here
    captures: dict[int, int] = field(default_factory=dict)  # captured value of the forward body -> the same here
    saved: dict[int, int] = field(default_factory=dict)  # value of the forward body that is saved -> the same here

    def reads(self, v: int) -> bool:
        """True when the backward body uses a value it is given."""
        return v in self.results.values() or any(v in node.reads for node in self.body.nodes)

    def finished(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        outside: Mapping[int, int],
        more: Mapping[int, int] = EMPTY_IDS,
    ) -> Body:
        """The body with these formal inputs and outputs.

        `outside` says what the forward body's captures capture; `more` are captures besides, by value here.
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
    again: Sequence[int],
) -> BackwardBody:
    """The backward part of the body called `key` for incoming gradients of its outputs at positions `heads`.

    `wanted` are values of the body; `again` are formal inputs that the backward body can be given anew.
    Raises CannotDifferentiate where a value has no type, NoGradient where a node inside has no gradient.
    """
    graph = body.graph
    builder = Builder.from_graph(graph)
    incoming = {}
    for position in heads:
        v = graph.outputs[position]
        incoming[position] = builder.value(f"grad/{graph.values[v].name}", require_type(graph, v), Role.INPUT)
    question = GradientSpec(tuple((graph.outputs[p], h) for p, h in incoming.items()), tuple(dict.fromkeys(wanted)))
    try:
        pairs = differentiate(builder, graph, question)
    except NoGradient as error:
        raise error.inside(f"bodies.{key}.") from None
    return _BodySplitter(body, builder, incoming, again).taken(pairs)


def require_type(graph: Graph, v: int) -> TensorType:
    """Type of a value of a body. Raises CannotDifferentiate when it is a size only."""
    type = graph.values[v].type
    if type is None:
        raise CannotDifferentiate(
            f"{quoted(graph.values[v].name)} inside a body has no type", "declare its shape and dtype"
        )
    return type


class _BodySplitter:
    """Moves the nodes a differentiation added to a builder of their own."""

    def __init__(self, body: Body, whole: Builder, heads: Mapping[int, int], again: Sequence[int]):
        self.graph, self.whole = body.graph, whole
        self.count = len(body.graph.nodes)
        self.captured, self.again = {inner for inner, _ in body.captures}, frozenset(again)
        self.producer = {v: node for node in whole.nodes[: self.count] for v in node.writes}
        self.place: dict[int, int] = {}  # value of `whole` -> value of the backward body
        made = Builder(f"grad/{body.graph.name}", whole.opset)
        self.taking = BackwardBody(body.graph, made, {}, {})
        for position, v in heads.items():
            value = whole.values[v]
            self.taking.heads[position] = self.place[v] = made.value(value.name, value.type, Role.INPUT)

    def taken(self, pairs: Sequence[tuple[int, int]]) -> BackwardBody:
        backward, taking = self.whole.nodes[self.count :], self.taking
        number: dict[int, int] = {}
        for n, node in enumerate(backward, self.count):
            moved = self._moved(node, number)
            number[n] = len(taking.body.nodes)
            taking.body.append(moved)
        taking.results = {v: self._bring(gradient) for v, gradient in pairs}
        taking.forward = self._forward()
        return taking

    def _forward(self) -> Graph:
        """The forward body with the outputs the backward part asked for, under dense ids."""
        nodes, values = tuple(self.whole.nodes[: self.count]), list(self.graph.values)
        place = {v: v for v in range(len(values))}
        for node in nodes:
            for v in node.writes:
                if v not in place:
                    place[v] = len(values)
                    values.append(self.whole.values[v])
        nodes = tuple(
            node
            if max(node.outputs, default=ABSENT) < len(self.graph.values)
            else replace(node, outputs=tuple(ABSENT if v == ABSENT else place[v] for v in node.outputs))
            for node in nodes
        )
        self.taking.saved = {place[v]: here for v, here in self.taking.saved.items()}
        return replace(self.graph, values=tuple(values), nodes=nodes)

    def _moved(self, node: Node, number: Mapping[int, int]) -> Node:
        """A backward node that reads and writes values of the backward body."""
        record = find_op(node.op)
        shapes = record.shape_only if record is not None and not node.bodies else ()
        inputs = tuple([self._shaped(v) if i in shapes else self._bring(v) for i, v in enumerate(node.inputs)])
        bodies = {key: remap_captures(inner, self._bring) for key, inner in node.bodies.items()}
        outputs = tuple([ABSENT if v == ABSENT else self._copied(v) for v in node.outputs])
        reads = node.gradient_reads
        return replace(
            node,
            inputs=inputs,
            outputs=outputs,
            bodies=MappingProxyType(bodies),
            after=tuple(number[n] for n in node.after if n in number),
            gradient_reads=None if reads is None else tuple(self._bring(v) for v in reads),
        )

    def _bring(self, v: int) -> int:
        """Id in the backward body of a value of the whole."""
        if v == ABSENT:
            return ABSENT
        if v not in self.place:
            self.place[v] = self._found(v)
        return self.place[v]

    def _found(self, v: int) -> int:
        taking, value = self.taking, self.whole.values[v]
        if value.data is not None:
            return self._copied(v)
        if v in self.producer:
            return self._shown_again(v) if self._is_shown(v) else self._saved(v)
        if v in self.captured:
            taking.captures[v] = self._given(value)
            return taking.captures[v]
        if v in self.again:
            taking.formals[v] = self._given(value)
            return taking.formals[v]
        return self._saved(v)

    def _is_shown(self, v: int) -> bool:
        """True for a view in a form that is not computed: it costs nothing to show it again."""
        node = self.producer.get(v)
        return (
            node is not None
            and is_view(self.graph, node)
            and not any(other in self.producer for other in node.inputs[1:])
        )

    def _shown_again(self, v: int) -> int:
        """The view, and the views it is a view of, made once more in the backward body."""
        chain = [v]
        while self._is_shown(source := self.producer[chain[-1]].inputs[0]) and source not in self.place:
            chain.append(source)
        for shown in reversed(chain):
            node, values = self.producer[shown], self.whole.values
            made = self.taking.body.node(
                node.op,
                [self._bring(source) for source in node.inputs],
                name=node.name,
                outputs=[None if w == ABSENT else values[w].name for w in node.outputs],
                types=[None if w == ABSENT else values[w].type for w in node.outputs],
                attributes=node.attributes,
                phase=Phase.BACKWARD,
                views=node.views,
            )
            self.place.update((w, here) for w, here in zip(node.outputs, made, strict=True) if w != ABSENT)
        return self.place[v]

    def _saved(self, v: int) -> int:
        typed_value = self.whole.values[v]
        if typed_value.type is None:
            raise CannotDifferentiate(
                f"{quoted(typed_value.name)}, which the backward body reads, has no type", "declare its shape and dtype"
            )
        self.taking.saved[v] = self._given(typed_value)
        return self.taking.saved[v]

    def _shaped(self, v: int) -> int:
        """Stands for a value of which only the shape is read: itself where it is there, else zeros."""
        if v == ABSENT or v in self.place or v not in self.producer:
            return self._bring(v)
        return self.taking.emit(f"{self.whole.values[v].name}/shape").zeros(require_type(self._whole(), v)).id

    def _whole(self) -> Graph:
        return Graph("", tuple(self.whole.values), ())

    def _given(self, value: Value) -> int:
        return self.taking.body.value(value.name, value.type, Role.INPUT)

    def _copied(self, v: int) -> int:
        value = self.whole.values[v]
        fields = {"bytes": value.bytes, "fixed_bytes": value.fixed_bytes, "annotations": value.annotations}
        self.place[v] = self.taking.body.value(value.name, value.type, value.role, data=value.data, **fields)
        return self.place[v]
