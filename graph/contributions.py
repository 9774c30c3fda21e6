"""Gradients under way: the contributions to each value's gradient, and the one place where they are summed.

A value's gradient is complete when every reader on the path has been differentiated; it is summed
there and then, so that its parts go early. Up to `FLAT` parts make one Sum; more are added as they
come, so that never more than two of them are held.

    x ──▶ a ──▶ ...      parts of x: from a, b, c.  The walk meets c, b, a; after a: grad/x = Sum(c, b, a)
     ├──▶ b ──▶ ...
     ╰──▶ c ──▶ ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from graph.builder import Builder
from graph.ir import EMPTY, Node, Phase, Value

FLAT = 7  # operands of one Sum; from one more on, a chain of additions

#: Told a wanted value and its gradient at the moment it is complete; says what stands for it from then on.
Ready = Callable[[int, int], int]


class Contributions:
    """Parts of the gradient of each value, by value id."""

    def __init__(self, builder: Builder, expected: Sequence[int], producer: Sequence[int]):
        self.builder, self.producer = builder, producer
        self.waiting = list(expected)  # parts that may still come, one a slot that reads the value
        self.chained = [count > FLAT for count in expected]
        self.parts: dict[int, list[int]] = {}
        self.complete: dict[int, int] = {}  # value -> its gradient, once nothing more can come

    def add(self, v: int, gradient: int) -> None:
        """One more part of the gradient of `v`."""
        parts = self.parts.setdefault(v, [])
        parts.append(gradient)
        if self.chained[v] and len(parts) == 2:
            self.parts[v] = [self._sum(v, parts)]

    def settle(self, v: int, slots: int) -> int | None:
        """The gradient of `v` if it is complete after `slots` more slots were dealt with, else None."""
        self.waiting[v] -= slots
        if self.waiting[v] > 0:
            return None
        parts = self.parts.pop(v, None)
        if parts:
            self.complete[v] = parts[0] if len(parts) == 1 else self._sum(v, parts)
        return self.complete.get(v)

    def _sum(self, v: int, parts: Sequence[int]) -> int:
        value = self.builder.values[v]
        node = self.builder.nodes[self.producer[v]] if self.producer[v] >= 0 else None
        total = same_size(self.builder, value, f"grad/{value.name}")
        self.builder.node(
            "Add" if len(parts) == 2 else "Sum", parts, name=f"grad/{value.name}", outputs=[total],
            phase=Phase.BACKWARD, annotations=provenance(node, value.name),
        )  # fmt: skip
        return total


def same_size(builder: Builder, value: Value, name: str) -> int:
    """Id of a new value of the type and bytes of `value`."""
    return builder.value(name, value.type, bytes=value.bytes, fixed_bytes=value.fixed_bytes)


def provenance(node: Node | None, name: str) -> Mapping[str, Any]:
    """Annotations of a gradient node: those of the forward node, and whose gradient it is."""
    return MappingProxyType({**(node.annotations if node else EMPTY), "gradient_of": node.name if node else name})
