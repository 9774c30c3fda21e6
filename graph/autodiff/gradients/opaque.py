"""Gradient of an unknown op: one opaque node that reads the values declared in `gradient_reads`.

q, k, v ──▶ acme::Attention ──▶ o          gradient_reads: q k v o
dq, dk, dv ◀── acme::AttentionGrad ◀── do, q, k, v, o
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.autodiff.gradients.accumulation import SYMBOLIC_ZERO, Cotangent, add_value_like, provenance
from graph.builder.builder import Builder
from graph.ir import ABSENT, Cost, Effect, Node, Phase
from graph.ops.registry import find_op

#: Effects of the forward op that its gradient has too: the reason against recomputation holds for both.
_KEPT_EFFECTS = (Effect.COLLECTIVE, Effect.UNSTABLE)


def opaque_gradients(
    builder: Builder, node: Node, slots: Sequence[int], incoming: Sequence[int | None], needs: Sequence[bool]
) -> list[Cotangent | None]:
    """Per slot the gradient; adds one opaque node. A value in two slots has one gradient, in the first of them."""
    wanted: dict[int, int] = {}  # value -> first slot
    for i, v in enumerate(slots):
        if needs[i]:
            wanted.setdefault(v, i)
    outputs = [add_value_like(builder, builder.values[v], f"grad/{node.name}:{i}") for i, v in enumerate(wanted)]
    present = [ABSENT if gradient is None or gradient == SYMBOLIC_ZERO else gradient for gradient in incoming]
    gradient_node(builder, node, "", [*present, *dict.fromkeys(node.gradient_reads or ())], outputs)
    of_slot = dict(zip(wanted.values(), outputs, strict=True))
    return [of_slot.get(i) for i in range(len(slots))]


def gradient_node(builder: Builder, node: Node, op: str, reads: Sequence[int], writes: Sequence[int]) -> None:
    """Add the node that computes a gradient of `node`; `op` is its type, "" for the forward op with the suffix Grad.

    Its cost is twice that of the forward node: the gradient of a matrix product is two matrix products.
    """
    name = f"{node.op}Grad"
    builder.node(
        op or (name if find_op(name) is None else f"{node.op}_grad"),
        reads,
        name=f"grad/{node.name}",
        outputs=writes,
        attributes=node.attributes,
        phase=Phase.BACKWARD,
        cost=_twice(builder, node),
        effect=node.effect if node.effect in _KEPT_EFFECTS else None,
        heavy=node.heavy,
        annotations=provenance(node, node.name),
    )


def _twice(builder: Builder, node: Node) -> Cost:
    """Twice the declared cost of the forward node, or twice the bytes it moves when no cost is declared."""
    cost = node.cost
    traffic = cost.traffic_bytes
    if traffic is None and cost.seconds is None:
        traffic = sum(builder.values[v].nbytes for v in (*node.reads, *node.writes))
    return Cost(
        None if cost.seconds is None else 2 * cost.seconds,
        None if cost.flops is None else 2 * cost.flops,
        None if traffic is None else 2 * traffic,
        cost.workspace_bytes,
    )
