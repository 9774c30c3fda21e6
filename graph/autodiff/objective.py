"""The function whose derivatives the gradients of a training step are, for checks of these gradients by value.

    x ──▶ a ──▶ h ──▶ StopGradient ──▶ c ──▶ b ──▶ loss       varies with w: a, h, b, loss      held: c
          w ────╯                       w ────╯

A gradient passes through `b` alone, so it is the derivative of the loss with `c` held at its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graph.autodiff.active_path import gradient_slots, non_differentiable_ops
from graph.autodiff.gradients.declared import AnyGradientRule
from graph.autodiff.gradients.registry import GRADIENT_RULES
from graph.autodiff.gradients.spec import GradientSpec, carries_gradient
from graph.ir import ABSENT, DTYPE_BITS, FLOAT_DTYPES, Graph, Node, producers, walk
from graph.ir.reachability import nodes_computing

#: Floats in which a value varies smoothly enough to be compared with its content in float64.
_SMOOTH = frozenset(name for name in FLOAT_DTYPES if DTYPE_BITS[name] >= 16)
_STOP = "remat::StopGradient"


class NotCompared(Exception):
    """A gradient that cannot be compared with a derivative; the message is the reason, without names of the model."""


@dataclass(frozen=True, eq=False, slots=True)
class Objective:
    """Σ head · target of `forward`, as `spec` names both; gradients are with respect to `spec.wanted`."""

    forward: Graph
    spec: GradientSpec
    is_accumulated: bool = False  # the step adds its gradients to those of earlier micro-batches

    def variables(self) -> list[int]:
        """Wanted values that no node writes."""
        producer, values = producers(self.forward), self.forward.values
        wanted = (v for v in dict.fromkeys(self.spec.wanted) if producer[v] < 0 and v not in self.spec.stops)
        return [v for v in wanted if carries_gradient(values[v])]


def held_values(objective: Objective) -> list[int]:
    """Values that vary with the wanted ones, and that no gradient passes through. O(nodes + reads).

    Raises NotCompared where a gradient is no derivative.
    """
    graph, spec = objective.forward, objective.spec
    stopping = non_differentiable_ops(spec.rules)
    varies, held = set(spec.wanted) - spec.stops, list[int]()
    for n in nodes_computing(graph.nodes, (target for target, _ in spec.targets)):
        node = graph.nodes[n]
        if not any(v in varies for v in gradient_slots(node) if v != ABSENT):
            continue
        is_held = node.op in stopping or n in spec.skipped
        if not is_held:
            _check_node(node, spec.rules)
        for v in node.writes:
            value = graph.values[v]
            if is_held or v in spec.stops or not carries_gradient(value):
                held.append(v)
            elif value.type is None or value.type.dtype not in _SMOOTH:
                raise NotCompared(f"values of {'unknown type' if value.type is None else value.type.dtype}")
            else:
                varies.add(v)
    return held


def _check_node(node: Node, rules: Mapping[str, AnyGradientRule]) -> None:
    """Raise NotCompared if the gradient of the node is no derivative, or stops inside its bodies."""
    if _is_estimate(node.op, rules):
        raise NotCompared(f"the gradient of {node.op} is declared or an estimate, no derivative")
    for body in node.bodies.values():
        for graph in walk(body.graph):
            ends = [inner.op for inner in graph.nodes if inner.op == _STOP or _is_estimate(inner.op, rules)]
            if any(value.stop_gradient for value in graph.values):
                ends.append("a value with stop_gradient")
            if ends:
                raise NotCompared(f"{ends[0]} in a body of {node.op} ends the gradient or replaces it")


def _is_estimate(op: str, rules: Mapping[str, AnyGradientRule]) -> bool:
    """True for an op whose gradient is declared by a document or request, or not the derivative of its kernel."""
    rule = GRADIENT_RULES.get(op)
    return op in rules or (rule is not None and rule.is_estimate)
