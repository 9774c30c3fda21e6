"""The gradient of an op without a rule whose body of standard ops is known: that of its body.

    remat::TanhGrad(dz, y) = dz * (1 - y * y)        its body, differentiated like a graph and written in place

So gradients can be differentiated again: what rules write is ops with rules, or with such bodies.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial

from graph.autodiff.gradients.control_flow.backward_body import DifferentiateBody
from graph.autodiff.gradients.registry import (
    GRADIENT_RULES,
    NON_DIFFERENTIABLE,
    REFUSED_GRADIENTS,
    ForwardNode,
    GradientRule,
    InputGradients,
)
from graph.autodiff.gradients.spec import GradientSpec
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.ir import ABSENT, Effect, Graph, Node, Phase, Role, Val
from graph.ops.registry.registry import Call, find_op


@functools.cache
def body_rule(op: str, differentiate: DifferentiateBody) -> GradientRule | None:
    """The rule of an op that has a body and no rule, None for any other; `differentiate` takes the body as a graph."""
    record = find_op(op)
    if record is None or record.body is None or record.effect is not Effect.PURE:
        return None
    if op in GRADIENT_RULES or op in NON_DIFFERENTIABLE or op in REFUSED_GRADIENTS:
        return None
    return GradientRule(partial(_through_body, differentiate), zeros=False)


def _through_body(
    differentiate: DifferentiateBody, emit: Emit, node: ForwardNode, *incoming: Val | None
) -> InputGradients:
    inside = _BodyGraph(emit, node)
    question = inside.question(incoming)
    pairs = dict(differentiate(inside.builder, inside.graph, question))
    found = {v: inside.brought(gradient) for v, gradient in pairs.items()}
    return tuple([None if x is None else found.get(x.id) for x in inside.given])


class _BodyGraph:
    """The body as a graph, and where its values are outside."""

    def __init__(self, emit: Emit, node: ForwardNode):
        self.emit, self.node = emit, node
        self.builder = Builder(node.op, emit.builder.opset)
        self.given: list[Val | None] = []
        self.outside: dict[int, int] = {ABSENT: ABSENT}  # value of the body -> value outside
        for x in node.inputs:
            self.given.append(None if x is None else self._input(x))
        self.results = self._run()
        self.graph = Graph(
            node.op,
            tuple(self.builder.values),
            tuple(self.builder.nodes),
            (),
            tuple(self.builder.inputs),
            self.builder.opset,
        )

    def _input(self, x: Val) -> Val:
        data = self.emit.known(x)
        if data is None:
            v = self.builder.value(f"i{len(self.given)}", x.type, Role.INPUT)
        else:
            v = self.builder.constant(data)
        self.outside[v] = x.id
        return Val(v, x.type)

    def _run(self) -> Sequence[Val | None]:
        node = self.node
        record = find_op(node.op)
        assert record is not None and record.body is not None
        call = Call(
            node.op,
            node.attributes,
            tuple(None if x is None else x.type for x in node.inputs),
            tuple(None if y is None else y.type for y in node.outputs),
            tuple(y is not None for y in node.outputs),
            tuple(self.emit.known(x) for x in node.inputs),
            self.builder.opset.get("", 21),
        )
        made = record.body(Emit(self.builder, "body", Phase.BACKWARD), call, *self.given)
        return made if isinstance(made, tuple) else (made,)

    def question(self, incoming: Sequence[Val | None]) -> GradientSpec:
        targets = []
        for i, (result, dz, y) in enumerate(zip(self.results, incoming, self.node.outputs, strict=False)):
            if result is None or dz is None:
                continue
            head = self.builder.value(f"d{i}", dz.type, Role.INPUT)
            self.outside[head] = dz.id
            targets.append((result.id, head))
            if y is not None:
                self.outside.setdefault(result.id, y.id)
        wanted = [x.id for x, needed in zip(self.given, self.node.needs, strict=True) if x is not None and needed]
        return GradientSpec(tuple(targets), tuple(wanted))

    def brought(self, gradient: int) -> Val:
        """The gradient outside, after the nodes it needs that are not there yet."""
        for node in self._missing(gradient):
            made = self.emit.builder.node(
                node.op,
                [self._place(v) for v in node.inputs],
                name=self.emit.prefix,
                outputs=[None if v == ABSENT else f"{self.emit.prefix}:{i}" for i, v in enumerate(node.outputs)],
                types=[None if v == ABSENT else self.builder.values[v].type for v in node.outputs],
                attributes=node.attributes,
                phase=self.emit.phase,
                **self.emit.node_fields,
            )
            self.outside.update((v, w) for v, w in zip(node.outputs, made, strict=True) if v != ABSENT)
        return self.emit.val(self._place(gradient))

    def _missing(self, gradient: int) -> list[Node]:
        needed, missing = {gradient}, []
        for node in reversed(self.builder.nodes):
            if any(v in needed and v not in self.outside for v in node.writes):
                needed.update(node.reads)
                missing.append(node)
        return missing[::-1]

    def _place(self, v: int) -> int:
        if v not in self.outside:
            data = self.builder.values[v].data
            assert data is not None, "what no node writes is given or a constant"
            self.outside[v] = self.emit.constant(data).id
        return self.outside[v]
