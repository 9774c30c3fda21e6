"""Active path of a differentiation: per value whether its gradient is needed, and the nodes to differentiate.

w ──▶ a ──▶ b ──▶ target       needed: depends on a wanted value, and a target depends on it
      ╰───▶ c                  c is not active: no target depends on it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graph.autodiff.function_body import body_rule
from graph.autodiff.gradients.control_flow.backward_body import DifferentiateBody
from graph.autodiff.gradients.declared import AnyGradientRule
from graph.autodiff.gradients.registry import GRADIENT_RULES, NON_DIFFERENTIABLE, GradientStatus
from graph.autodiff.gradients.spec import GradientSpec, hands_on
from graph.ir import Graph, Node

ZERO_GRADIENT = "remat::ZeroGradient"  # gives its input a gradient of zeros even when its output is not read


@dataclass(frozen=True, slots=True)
class ActivePath:
    """Activity of values and nodes."""

    needs: bytearray  # per value: 1 where its gradient is needed; the last entry belongs to ABSENT
    nodes: list[int]  # ids of active nodes, last first


def find_active_path(graph: Graph, spec: GradientSpec) -> ActivePath:
    """Values and nodes that the gradients of `spec` pass through. O(nodes + reads)."""
    stopping = non_differentiable_ops(spec.rules)
    needs = _depends_on_wanted(graph, spec, stopping)
    reached = bytearray(len(graph.values) + 1)
    for target, _ in spec.targets:
        reached[target] = needs[target]
    path = []
    skipped = spec.skipped
    for n in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[n]
        for v in node.outputs:
            if reached[v]:
                break
        else:
            if node.op != ZERO_GRADIENT:
                continue
        if node.op in stopping or n in skipped:
            continue
        sources = [v for v in gradient_slots(node) if needs[v]]
        if sources:
            path.append(n)
            for v in sources:
                reached[v] = 1
    # A wanted value that no target depends on has no pending contributions.
    return ActivePath(bytearray(a & b for a, b in zip(needs, reached, strict=True)), path)


def _depends_on_wanted(graph: Graph, spec: GradientSpec, stopping: frozenset[str]) -> bytearray:
    needs = bytearray(len(graph.values) + 1)
    stops, skipped, values = spec.stops, spec.skipped, graph.values
    for v in spec.wanted:
        needs[v] = v not in stops
    for n, node in enumerate(graph.nodes):
        if node.op in stopping or n in skipped:
            continue
        for v in gradient_slots(node):
            if needs[v]:
                for output in node.writes:
                    needs[output] |= hands_on(node, values[output]) and output not in stops
                break
    return needs


def non_differentiable_ops(rules: Mapping[str, AnyGradientRule]) -> frozenset[str]:
    """Ops that stop the gradient without an error; `rules` override the table."""
    if not rules:
        return frozenset(NON_DIFFERENTIABLE)
    declared = {op for op, rule in rules.items() if rule is GradientStatus.NOT_NEEDED}
    return frozenset(NON_DIFFERENTIABLE - rules.keys() | declared)


def rule_of(op: str, rules: Mapping[str, AnyGradientRule], differentiate: DifferentiateBody) -> AnyGradientRule | None:
    """Rule of an op: from `rules` (request or document), else from the table, else derived from the op's body."""
    return rules.get(op) or GRADIENT_RULES.get(op) or body_rule(op, differentiate)


def gradient_slots(node: Node) -> tuple[int, ...]:
    """Value ids that receive a gradient, one per slot: inputs in order, then captures of bodies."""
    if not node.bodies:
        return node.inputs
    return (*node.inputs, *(outer for body in node.bodies.values() for _, outer in body.captures))
