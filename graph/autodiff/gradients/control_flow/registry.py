"""Gradients of nodes with bodies: what a rule is asked, and the table of rules.

`docs/concepts/control-flow.md` shows the form.

A rule replaces the forward node by one that hands out saved values too, adds the backward node, and
returns the parts of gradients that come of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graph.autodiff.gradients.accumulation import provenance
from graph.autodiff.gradients.control_flow.backward_body import DifferentiateBody
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate, quoted
from graph.ir import Node, Phase, TensorType, Val

BodyGradients = list[tuple[int, int]]  # (value outside, a part of its gradient), at most one a slot


@dataclass(frozen=True, slots=True)
class BodyGradientContext:
    """A node with bodies that is differentiated, and the graph around it."""

    builder: Builder
    n: int
    incoming: Sequence[int | None]  # gradient of each output
    needed: frozenset[int]  # values outside whose gradient is wanted
    constants: dict[Any, Val]
    differentiate: DifferentiateBody
    bounded: frozenset[int] = frozenset()  # values outside that may have fewer rows than their types say

    @property
    def node(self) -> Node:
        return self.builder.nodes[self.n]

    @property
    def emit(self) -> Emit:
        return Emit(
            self.builder,
            f"grad/{self.node.name}",
            Phase.BACKWARD,
            self.constants,
            annotations=provenance(self.node, self.node.name),
        )

    def type_of(self, v: int) -> TensorType:
        """Type of a value outside. Raises CannotDifferentiate when it is a size only."""
        value = self.builder.values[v]
        if value.type is None:
            raise CannotDifferentiate(f"{quoted(value.name)} has no type", "declare its shape and dtype")
        return value.type


BodyRule = Callable[[BodyGradientContext], BodyGradients]
BODY_RULES: dict[str, BodyRule] = {}


def body_gradient(*ops: str) -> Callable[[BodyRule], BodyRule]:
    """Register the decorated rule for each op named."""

    def register(rule: BodyRule) -> BodyRule:
        BODY_RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def body_gradients(asked: BodyGradientContext, slots: Sequence[int]) -> list[int | None]:
    """Per slot the part of the gradient that goes to it."""
    parts: dict[int, list[int]] = {}
    for v, gradient in BODY_RULES[asked.node.op](asked):
        parts.setdefault(v, []).append(gradient)
    return [parts[v].pop() if parts.get(v) else None for v in slots]
