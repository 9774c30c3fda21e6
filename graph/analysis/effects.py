"""Side effects of nodes; a node with bodies has the joined effects of its nested nodes."""

from __future__ import annotations

from graph.ir import Effect, Graph, Node, Role
from graph.ops.registry.registry import find_op, make_call

__all__ = ["effect_of", "has_side_effects", "is_repeatable"]


def effect_of(graph: Graph, node: Node) -> Effect:
    """The declared effect, else the join over its bodies, else the op registry's, else PURE."""
    if node.effect is not None:
        return node.effect
    if node.bodies:
        return _join_effects(
            {effect_of(body.graph, inner) for body in node.bodies.values() for inner in body.graph.nodes}
        )
    record = find_op(node.op)
    if record is None or (record.idle is not None and record.idle(make_call(graph, node))):
        return Effect.PURE
    return record.effect


def _join_effects(effects: set[Effect]) -> Effect:
    """Join of effects: the most restrictive one. RANDOM is absorbed by any other; two others join to ONCE."""
    left = effects - {Effect.PURE}
    if len(left) > 1:
        left -= {Effect.RANDOM}
    return Effect.PURE if not left else left.pop() if len(left) == 1 else Effect.ONCE


def is_repeatable(graph: Graph, node: Node) -> bool:
    """True if a rerun gives the same result: no effect, or random with a stream."""
    effect = effect_of(graph, node)
    return effect is Effect.PURE or (effect is Effect.RANDOM and node.stream is not None)


def has_side_effects(graph: Graph, node: Node) -> bool:
    """True if the node must run even when no output is read: ONCE, COLLECTIVE, or an update of a resident in place."""
    effect = effect_of(graph, node)
    overwrites = any(graph.values[node.inputs[source]].role is not Role.ACTIVATION for _, source in node.in_place)
    return effect in (Effect.ONCE, Effect.COLLECTIVE) or overwrites
