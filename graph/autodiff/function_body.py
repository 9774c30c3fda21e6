"""Gradient of an op that has no rule but a function body of standard ops: differentiate the body, inline the result.

    remat::TanhGrad(dz, y) = dz * (1 - y * y)        function body of TanhGrad

Second-order gradients need this: every op that a rule emits has a rule itself, or a function body.
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
    CannotDifferentiate,
    ForwardNode,
    GradientRule,
    InputGradients,
)
from graph.autodiff.gradients.spec import GradientSpec
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.ir import ABSENT, Effect, Graph, Phase, Role, Val
from graph.ir.reachability import nodes_computing
from graph.ops.registry.registry import Call, find_op


@functools.cache
def body_rule(op: str, differentiate: DifferentiateBody) -> GradientRule | None:
    """Rule of an op with a function body and no rule of its own; None for any other. `differentiate` takes a graph."""
    record = find_op(op)
    if record is None or record.body is None or record.effect is not Effect.PURE:
        return None
    if op in GRADIENT_RULES or op in NON_DIFFERENTIABLE or op in REFUSED_GRADIENTS:
        return None
    return GradientRule(partial(_through_body, differentiate), zeros=False)


def _through_body(
    differentiate: DifferentiateBody, emit: Emit, node: ForwardNode, *incoming: Val | None
) -> InputGradients:
    body = _BodyGraph(emit, node)
    pairs = dict(differentiate(body.builder, body.graph, body.gradient_spec(incoming)))
    gradients = {v: body.inline(gradient) for v, gradient in pairs.items()}
    return tuple([None if x is None else gradients.get(x.id) for x in body.formals])


class _BodyGraph:
    """Function body of one node as a graph, with the map from its values to the outer graph."""

    def __init__(self, emit: Emit, node: ForwardNode):
        self.emit, self.node = emit, node
        self.builder = Builder(node.op, emit.builder.opset)
        self.formals: list[Val | None] = []
        self.outside: dict[int, int] = {ABSENT: ABSENT}  # value of the body -> value of the outer graph
        for x in node.inputs:
            self.formals.append(None if x is None else self._input(x))
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
            v = self.builder.value(f"i{len(self.formals)}", x.type, Role.INPUT)
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
        try:
            results = record.body(Emit(self.builder, "body", Phase.BACKWARD), call, *self.formals)
        except ValueError as error:
            raise CannotDifferentiate(f"{node.op}: {error}", "export the model with standard ops") from None
        return results if isinstance(results, tuple) else (results,)

    def gradient_spec(self, incoming: Sequence[Val | None]) -> GradientSpec:
        """Targets: outputs with an incoming gradient. Wanted: inputs whose gradient is needed."""
        targets = []
        for i, (result, dz, y) in enumerate(zip(self.results, incoming, self.node.outputs, strict=False)):
            if result is None or dz is None:
                continue
            head = self.builder.value(f"d{i}", dz.type, Role.INPUT)
            self.outside[head] = dz.id
            targets.append((result.id, head))
            if y is not None:
                self.outside.setdefault(result.id, y.id)
        wanted = [x.id for x, needed in zip(self.formals, self.node.needs, strict=True) if x is not None and needed]
        return GradientSpec(tuple(targets), tuple(wanted))

    def inline(self, gradient: int) -> Val:
        """The gradient as a value of the outer graph; adds the nodes it depends on that are not inlined yet."""
        nodes = self.builder.nodes
        for node in [nodes[i] for i in nodes_computing(nodes, [gradient], given=self.outside)]:
            results = self.emit.builder.node(
                node.op,
                [self._place(v) for v in node.inputs],
                name=self.emit.prefix,
                outputs=[None if v == ABSENT else f"{self.emit.prefix}:{i}" for i, v in enumerate(node.outputs)],
                types=[None if v == ABSENT else self.builder.values[v].type for v in node.outputs],
                attributes=node.attributes,
                phase=self.emit.phase,
                **self.emit.node_fields,
            )
            self.outside.update((v, w) for v, w in zip(node.outputs, results, strict=True) if v != ABSENT)
        return self.emit.val(self._place(gradient))

    def _place(self, v: int) -> int:
        if v not in self.outside:
            data = self.builder.values[v].data
            assert data is not None, "a value without a producer is an input or a constant"
            self.outside[v] = self.emit.constant(data).id
        return self.outside[v]
