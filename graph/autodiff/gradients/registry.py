"""The table of gradient rules and what a rule sees of the node it differentiates."""

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
    """The forward node a rule differentiates. Reading an entry is what makes it saved."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]  # Val, or None where absent; a rule knows which its op requires
    outputs: tuple[Any, ...]  # Val, or None where the graph does not want it
    needs: tuple[bool, ...]  # per input: its gradient is wanted; a rule may return None elsewhere
    add_output: Callable[[int], Val]  # makes an optional output that the graph leaves out
    rows: tuple[bool, ...] = ()  # per input: its gradient may be given as rows

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def input(self, position: int) -> Any:
        """The input at a position, None when it is absent or left off the end."""
        return self.inputs[position] if position < len(self.inputs) else None

    def output(self, position: int) -> Val:
        """The output at a position, made by the forward node from now on if the graph leaves it out."""
        found = self.outputs[position] if position < len(self.outputs) else None
        return self.add_output(position) if found is None else found

    def needed(self, position: int) -> bool:
        return position < len(self.needs) and self.needs[position]

    def accepts_slices(self, position: int) -> bool:
        return position < len(self.rows) and self.rows[position]


InputGradients = tuple[Val | IndexedSlices | None, ...]
GradientFunction = Callable[..., InputGradients]  # rule(emit, node, *incoming gradients)


class GradientStatus(StrEnum):
    """What is known of the gradient of an op."""

    RULE = "rule"
    NOT_NEEDED = "none"  # ends the path quietly
    REFUSED = "refused"  # must not be asked for: an error where the path reaches the op
    MISSING = "missing"  # nobody has written it: an error too, unless every incoming gradient is zero


@dataclass(frozen=True, slots=True)
class GradientRule:
    rule: GradientFunction
    zeros: bool  # missing incoming gradients come as zeros instead of None


GRADIENT_RULES: dict[str, GradientRule] = {}
NON_DIFFERENTIABLE: set[str] = set()  # end the path quietly: integer results, comparisons, shapes
REFUSED_GRADIENTS: dict[str, str] = {}  # op -> why its gradient must not be asked for


def gradient(*ops: str, zeros: bool = False) -> Callable[[GradientFunction], GradientFunction]:
    """Register the decorated rule for each op named."""

    def register(rule: GradientFunction) -> GradientFunction:
        for op in ops:
            if op in GRADIENT_RULES:
                raise ValueError(f"op {op} has two gradient rules")
            GRADIENT_RULES[op] = GradientRule(rule, zeros)
        return rule

    return register


def no_gradient(*ops: str) -> None:
    """Say that these ops end the gradient path quietly."""
    NON_DIFFERENTIABLE.update(ops)


def refused_gradient(*ops: str, why: str) -> None:
    """Say that asking for the gradient of these ops is a mistake."""
    REFUSED_GRADIENTS.update(dict.fromkeys(ops, why))


def gradient_status(op: str) -> GradientStatus:
    """What is known of the gradient of an op, before a request or document declares more."""
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
