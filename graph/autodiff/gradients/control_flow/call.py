"""Gradient of Call: a Call of the backward body. Saved values become outputs of the forward node."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from graph.autodiff.gradients.control_flow.backward_body import build_backward_body, require_type
from graph.autodiff.gradients.control_flow.registry import BodyGradientContext, BodyGradients, body_gradient
from graph.ir import ABSENT, Body
from graph.ops.control_flow.interface import CALL


@body_gradient(CALL)
def call_gradient(context: BodyGradientContext) -> BodyGradients:
    """Gradients of the arguments and of the captured values."""
    node, body = context.node, context.node.bodies["body"]
    graph, outside, builder = body.graph, dict(body.captures), context.builder
    heads = {p: gradient for p, gradient in enumerate(context.incoming) if gradient is not None}
    owner = {**dict(zip(graph.inputs, node.inputs, strict=True)), **outside}  # value of the body -> outer value
    wanted = [inner for inner, outer in owner.items() if outer in context.needed]
    part = build_backward_body("body", body, list(heads), wanted, context.differentiate, available=graph.inputs)
    reached = [v for v in wanted if v in part.results]
    if not reached:
        return []
    stored = [
        builder.value(f"{node.name}/saved/{part.forward.values[v].name}", require_type(part.forward, v))
        for v in part.saved
    ]
    missing = len(graph.outputs) - len(node.outputs)
    extended = Body(replace(part.forward, outputs=(*graph.outputs, *part.saved)), body.captures)
    builder.nodes[context.n] = replace(
        node, outputs=(*node.outputs, *[ABSENT] * missing, *stored), bodies=MappingProxyType({"body": extended})
    )
    given = [(part.heads[p], gradient) for p, gradient in heads.items() if part.reads(part.heads[p])]
    given += [(here, owner[v]) for v, here in part.formals.items()]
    given += zip(part.saved.values(), stored, strict=True)
    backward = part.as_body([here for here, _ in given], [part.results[v] for v in reached], outside)
    owners = [owner[v] for v in reached]
    return list(zip(owners, context.add_backward(CALL, [v for _, v in given], owners, {"body": backward}), strict=True))
