"""The table of gradient rules and what a rule sees of the node it differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from graph.autodiff.gradients.accumulation import Rows
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate
from graph.ir import Val


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward node a rule differentiates. Reading an entry is what makes it saved."""

    op: str
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]  # Val, or None where absent; a rule knows which its op requires
    outputs: tuple[Any, ...]  # Val, or None where the graph does not want it
    needs: tuple[bool, ...]  # per input: its gradient is wanted; a rule may return None elsewhere
    want: Callable[[int], Val]  # makes an optional output that the graph leaves out
    rows: tuple[bool, ...] = ()  # per input: its gradient may be given as rows

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def input(self, position: int) -> Any:
        """The input at a position, None when it is absent or left off the end."""
        return self.inputs[position] if position < len(self.inputs) else None

    def output(self, position: int) -> Val:
        """The output at a position, made by the forward node from now on if the graph leaves it out."""
        found = self.outputs[position] if position < len(self.outputs) else None
        return self.want(position) if found is None else found

    def needed(self, position: int) -> bool:
        return position < len(self.needs) and self.needs[position]

    def takes_rows(self, position: int) -> bool:
        return position < len(self.rows) and self.rows[position]


Gradients = tuple[Val | Rows | None, ...]
Rule = Callable[..., Gradients]  # rule(emit, node, *incoming gradients)


class State(StrEnum):
    """What is known of the gradient of an op."""

    RULE = "rule"
    NOT_NEEDED = "none"  # ends the path quietly
    REFUSED = "refused"  # must not be asked for: an error where the path reaches the op
    MISSING = "missing"  # nobody has written it: an error too, unless every incoming gradient is zero


@dataclass(frozen=True, slots=True)
class GradientRule:
    rule: Rule
    zeros: bool  # missing incoming gradients come as zeros instead of None


RULES: dict[str, GradientRule] = {}
UNDIFFERENTIABLE: set[str] = set()  # end the path quietly: integer results, comparisons, shapes
REFUSED: dict[str, str] = {}  # op -> why its gradient must not be asked for


def gradient(*ops: str, zeros: bool = False) -> Callable[[Rule], Rule]:
    """Register the decorated rule for each op named."""

    def register(rule: Rule) -> Rule:
        for op in ops:
            if op in RULES:
                raise ValueError(f"op {op} has two gradient rules")
            RULES[op] = GradientRule(rule, zeros)
        return rule

    return register


def no_gradient(*ops: str) -> None:
    """Say that these ops end the gradient path quietly."""
    UNDIFFERENTIABLE.update(ops)


def refused_gradient(*ops: str, why: str) -> None:
    """Say that asking for the gradient of these ops is a mistake."""
    REFUSED.update(dict.fromkeys(ops, why))


def state_of(op: str) -> State:
    """What is known of the gradient of an op, before a request or document declares more."""
    if op in RULES:
        return State.RULE
    if op in UNDIFFERENTIABLE:
        return State.NOT_NEEDED
    return State.REFUSED if op in REFUSED else State.MISSING


__all__ = [
    "REFUSED",
    "RULES",
    "UNDIFFERENTIABLE",
    "CannotDifferentiate",
    "Emit",
    "Forward",
    "GradientRule",
    "Gradients",
    "Rows",
    "State",
    "Val",
    "gradient",
    "no_gradient",
    "refused_gradient",
    "state_of",
]
