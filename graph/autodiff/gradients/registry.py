"""The table of gradient rules, and the view of the forward node that a rule gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from graph.autodiff.gradients.accumulation import IndexedSlices
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@dataclass(frozen=True, slots=True)
class ForwardNode:
    """The forward node a rule differentiates. Every input or output that the rule reads is saved for backward."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]  # Val, or None where absent
    outputs: tuple[Any, ...]  # Val, or None where absent
    needs: tuple[bool, ...]  # per input: its gradient is needed; a rule may return None elsewhere
    add_output: Callable[[int], Val]  # (position) adds an absent optional output to the forward node
    rows: tuple[bool, ...] = ()  # per input: its gradient may be row-sparse (IndexedSlices)
    bounded: tuple[bool, ...] = ()  # per input: may have fewer rows than its type; empty where none has

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def input(self, position: int) -> Any:
        """The input at a position; None when it is absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def output(self, position: int) -> Val:
        """The output at a position; an absent one is added to the forward node."""
        output = self.outputs[position] if position < len(self.outputs) else None
        return self.add_output(position) if output is None else output

    def needed(self, position: int) -> bool:
        return position < len(self.needs) and self.needs[position]

    def is_bounded(self, position: int) -> bool:
        """True when the lengths of the input are known at run time only; its type is an upper bound."""
        return position < len(self.bounded) and self.bounded[position]

    def accepts_slices(self, position: int) -> bool:
        return position < len(self.rows) and self.rows[position]


InputGradients = tuple[Val | IndexedSlices | None, ...]
GradientFunction = Callable[..., InputGradients]  # rule(emit, node, *incoming gradients)


class GradientStatus(StrEnum):
    """Availability of the gradient of an op."""

    RULE = "rule"
    NOT_NEEDED = "none"  # not differentiable: stops the gradient without an error
    REFUSED = "refused"  # an error on the active path
    MISSING = "missing"  # no rule: an error on the active path, unless every incoming gradient is zero


@dataclass(frozen=True, slots=True)
class GradientRule:
    rule: GradientFunction
    zeros: bool  # True: missing incoming gradients are passed as zeros; False: as None
    is_estimate: bool = False  # True: not the derivative of the kernel, such as straight through a rounding


GRADIENT_RULES: dict[str, GradientRule] = {}
NON_DIFFERENTIABLE: set[str] = set()  # stop the gradient without an error: integer results, comparisons, shapes
REFUSED_GRADIENTS: dict[str, str] = {}  # op -> why it has no gradient


def gradient(
    *ops: str, zeros: bool = False, is_estimate: bool = False
) -> Callable[[GradientFunction], GradientFunction]:
    """Decorator: register the function as the rule of `ops`."""

    def register(rule: GradientFunction) -> GradientFunction:
        for op in ops:
            if op in GRADIENT_RULES:
                raise ValueError(f"op {op} has two gradient rules")
            GRADIENT_RULES[op] = GradientRule(rule, zeros, is_estimate)
        return rule

    return register


def no_gradient(*ops: str) -> None:
    """Register ops that stop the gradient without an error."""
    NON_DIFFERENTIABLE.update(ops)


def refused_gradient(*ops: str, why: str) -> None:
    """Register ops whose gradient is an error; `why` completes the message."""
    REFUSED_GRADIENTS.update(dict.fromkeys(ops, why))


def gradient_status(op: str) -> GradientStatus:
    """Availability of the gradient of an op in the table, without declarations of a request or document."""
    if op in GRADIENT_RULES:
        return GradientStatus.RULE
    if op in NON_DIFFERENTIABLE:
        return GradientStatus.NOT_NEEDED
    return GradientStatus.REFUSED if op in REFUSED_GRADIENTS else GradientStatus.MISSING


__all__ = [
    "GRADIENT_RULES",
    "NON_DIFFERENTIABLE",
    "REFUSED_GRADIENTS",
    "CannotDifferentiate",
    "Emit",
    "ForwardNode",
    "GradientRule",
    "GradientStatus",
    "IndexedSlices",
    "InputGradients",
    "Val",
    "gradient",
    "gradient_status",
    "no_gradient",
    "refused_gradient",
]
