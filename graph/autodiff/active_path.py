"""What a gradient passes: per value whether it is needed, and the nodes to differentiate, last first.

w ──▶ a ──▶ b ──▶ target       needed: what depends on something wanted, and a target depends on
      ╰───▶ c                  c is no part of it: no target depends on it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graph.autodiff.function_body import body_rule
from graph.autodiff.gradients.control_flow.backward_body import DifferentiateBody
from graph.autodiff.gradients.declared import AnyGradientRule
from graph.autodiff.gradients.registry import GRADIENT_RULES, NON_DIFFERENTIABLE, GradientStatus
from graph.autodiff.gradients.spec import GradientSpec, carries_gradient
from graph.ir import Graph, Node

ZERO_GRADIENT = "remat::ZeroGradient"  # gives its input a gradient of zeros, though nobody reads what it writes


@dataclass(frozen=True, slots=True)
class ActivePath:
    """One bit a value, and node ids from last to first."""

    needs: bytearray  # 1 where the value's gradient is needed; the last entry answers for ABSENT
    nodes: list[int]


def find_active_path(graph: Graph, question: GradientSpec) -> ActivePath:
    """What the gradients of a question pass. O(nodes + reads)."""
    ended = _ended(question.rules)
    needs = _depends_on_wanted(graph, question, ended)
    reached = bytearray(len(graph.values) + 1)
    for target, _ in question.targets:
        reached[target] = needs[target]
    path = []
    skipped = question.skipped
    for n in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[n]
        for v in node.outputs:
            if reached[v]:
                break
        else:
            if node.op != ZERO_GRADIENT:
                continue
        if node.op in ended or n in skipped:
            continue
        sources = [v for v in gradient_slots(node) if needs[v]]
        if sources:
            path.append(n)
            for v in sources:
                reached[v] = 1
    # Wanted values no target reaches must not be waited for.
    return ActivePath(bytearray(a & b for a, b in zip(needs, reached, strict=True)), path)


def _depends_on_wanted(graph: Graph, question: GradientSpec, ended: frozenset[str]) -> bytearray:
    needs = bytearray(len(graph.values) + 1)
    stops, skipped, values = question.stops, question.skipped, graph.values
    for v in question.wanted:
        needs[v] = v not in stops
    for n, node in enumerate(graph.nodes):
        if node.op in ended or n in skipped:
            continue
        for v in gradient_slots(node):
            if needs[v]:
                for output in node.writes:
                    needs[output] |= carries_gradient(values[output]) and output not in stops
                break
    return needs


def _ended(rules: Mapping[str, AnyGradientRule]) -> frozenset[str]:
    """Ops that end the path quietly."""
    if not rules:
        return frozenset(NON_DIFFERENTIABLE)
    said = {op for op, rule in rules.items() if rule is GradientStatus.NOT_NEEDED}
    return frozenset(NON_DIFFERENTIABLE - rules.keys() | said)


def rule_of(op: str, rules: Mapping[str, AnyGradientRule], differentiate: DifferentiateBody) -> AnyGradientRule | None:
    """What a request or document says of an op, else what the table says, else what its body says."""
    return rules.get(op) or GRADIENT_RULES.get(op) or body_rule(op, differentiate)


def gradient_slots(node: Node) -> tuple[int, ...]:
    """Value ids the gradient goes to, one a slot: inputs in order, then what bodies capture."""
    if not node.bodies:
        return node.inputs
    return (*node.inputs, *(outer for body in node.bodies.values() for _, outer in body.captures))
