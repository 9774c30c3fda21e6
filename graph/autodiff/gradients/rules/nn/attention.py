"""Gradient of fused attention: one node that recomputes the scores block by block."""

from __future__ import annotations

from graph.autodiff.gradients.registry import ForwardNode, InputGradients, gradient
from graph.builder.emit import Emit
from graph.ir import Val


@gradient("remat::FusedAttention")
def fused_attention(emit: Emit, node: ForwardNode, dy: Val | None, dlse: Val | None = None) -> InputGradients:
    """dq, dkt, dv and dbias, from the output and the log-sum-exp of each row."""
    q, kt, v = node.inputs[:3]
    y, lse = node.output(0), node.output(1)
    gradients = emit.op(
        "remat::FusedAttentionGrad",
        emit.zeros(y.type) if dy is None else dy,
        dlse,
        q,
        kt,
        v,
        y,
        lse,
        node.input(3),
        node.input(4),
        outputs=[node.needed(i) for i in range(4)],
        **node.attributes,
    )
    return (*gradients, None)[: len(node.inputs)]
