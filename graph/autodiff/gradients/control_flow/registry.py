"""Gradient rules of nodes with bodies: their argument `BodyGradientContext`, and the table.

A rule replaces the forward node by one that also returns the saved values, adds the backward node, and returns
contributions to gradients. `docs/concepts/control-flow.md` shows the form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from graph.autodiff.gradients.accumulation import provenance
from graph.autodiff.gradients.control_flow.backward_body import DifferentiateBody
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate, quoted
from graph.ir import EMPTY, Body, Node, Phase, TensorType, Val

BodyGradients = list[tuple[int, int]]  # (value of the outer graph, a contribution to its gradient); max. one per slot


@dataclass(frozen=True, slots=True)
class BodyGradientContext:
    """The node with bodies to differentiate, and the outer graph. Ids are of the outer graph."""

    builder: Builder
    n: int  # id of the node
    incoming: Sequence[int | None]  # gradient of each output
    needed: frozenset[int]  # values whose gradient is needed
    constants: dict[Any, Val]
    differentiate: DifferentiateBody
    bounded: frozenset[int] = frozenset()  # values that may have fewer rows than their types

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
        """Type of a value of the outer graph. Raises CannotDifferentiate when it has none."""
        value = self.builder.values[v]
        if value.type is None:
            raise CannotDifferentiate(f"{quoted(value.name)} has no type", "declare its shape and dtype")
        return value.type

    def add_backward(
        self,
        op: str,
        inputs: Sequence[int],
        targets: Sequence[int],
        bodies: Mapping[str, Body],
        attributes: Mapping[str, Any] = EMPTY,
        **annotations: Any,
    ) -> tuple[int, ...]:
        """Add the backward node; gradients of the values `targets`, ABSENT where not needed."""
        name, values = f"grad/{self.node.name}", self.builder.values
        return self.builder.node(
            op,
            inputs,
            name=name,
            outputs=[f"{name}/{values[v].name}" if v in self.needed else None for v in targets],
            types=[self.type_of(v) for v in targets],
            attributes=attributes,
            phase=Phase.BACKWARD,
            bodies=MappingProxyType(dict(bodies)),
            stream=self.node.stream or self.node.name,
            annotations=MappingProxyType({**provenance(self.node, self.node.name), **annotations}),
        )


BodyRule = Callable[[BodyGradientContext], BodyGradients]
BODY_RULES: dict[str, BodyRule] = {}


def body_gradient(*ops: str) -> Callable[[BodyRule], BodyRule]:
    """Decorator: register the function as the rule of `ops`."""

    def register(rule: BodyRule) -> BodyRule:
        BODY_RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def body_gradients(context: BodyGradientContext, slots: Sequence[int]) -> list[int | None]:
    """Per slot its contribution to the gradient of the value it reads; None without one."""
    parts: dict[int, list[int]] = {}
    for v, gradient in BODY_RULES[context.node.op](context):
        parts.setdefault(v, []).append(gradient)
    return [parts[v].pop() if parts.get(v) else None for v in slots]
