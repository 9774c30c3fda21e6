"""Gradients under way: the contributions to each value's gradient, and the one place where they are summed.

A value's gradient is complete when every reader on the path has been differentiated; it is summed
there and then, so that its parts go early. Up to `MAX_SUM_OPERANDS` parts make one Sum; more are added as they
come, so that never more than two of them are held.

    x ──▶ a ──▶ ...      parts of x: from a, b, c.  The walk meets c, b, a; after a: grad/x = Sum(c, b, a)
     ├──▶ b ──▶ ...
     ╰──▶ c ──▶ ...

Parts that are rows of a table stay rows: their indices are concatenated, and so are their values.
Parts known to be zeros are left out of the sum, unless there is nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate, quoted
from graph.ir import EMPTY, Node, Phase, Val, Value

MAX_SUM_OPERANDS = 7  # operands of one Sum; from one more on, a chain of additions
SYMBOLIC_ZERO = -2  # stands for a gradient that is zero and that nobody has made yet

#: Told a wanted value and its gradient at the moment it is complete; says what stands for it from then on.
GradientHook = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class IndexedSlices:
    """A row-sparse gradient: values[i] belongs to row indices[i]. Rows not named are zero, repeated ones add up."""

    indices: int  # value ids
    values: int


Cotangent = int | IndexedSlices


@dataclass(frozen=True, slots=True)
class AccumulationPolicy:
    """What becomes of parts that do not go together."""

    mixed: str = "error"  # rows and dense parts of one gradient: or "densify"
    devices: str = "error"  # parts made on different devices: or "copy" to the first part's


class CotangentAccumulator:
    """Parts of the gradient of each value, by value id."""

    def __init__(self, builder: Builder, expected: Sequence[int], producer: Sequence[int], policy: AccumulationPolicy):
        self.builder, self.producer, self.policy = builder, producer, policy
        self.waiting = list(expected)  # parts that may still come, one a slot that reads the value
        self.chained = [count > MAX_SUM_OPERANDS for count in expected]
        self.parts: dict[int, list[Cotangent]] = {}
        self.device: dict[int, str] = {}  # value -> device of the first part that has one
        self.zeros: dict[int, int] = {}  # value -> a part that is zero, or ZERO
        self.complete: dict[int, Cotangent] = {}  # value -> its gradient, once nothing more can come

    def add(self, v: int, gradient: Cotangent, device: str | None = None) -> None:
        """One more part of the gradient of `v`, made on a device. Raises CannotDifferentiate."""
        parts = self.parts.setdefault(v, [])
        if device is not None and self.device.setdefault(v, device) != device:
            gradient = self._moved(v, gradient, device)
        if parts and isinstance(parts[-1], IndexedSlices) is not isinstance(gradient, IndexedSlices):
            self._refuse_mixture(v)
            parts[:] = [self.dense(v, part) for part in parts]
            gradient = self.dense(v, gradient)
        parts.append(gradient)
        if self.chained[v] and len(parts) == 2 and not isinstance(gradient, IndexedSlices):
            self.parts[v] = [self._sum(v, parts)]

    def add_zero(self, v: int, gradient: int = SYMBOLIC_ZERO) -> None:
        """One more part that is known to be zero; it is kept only while there is no other."""
        self.zeros.setdefault(v, gradient)

    def settle(self, v: int, slots: int) -> Cotangent | None:
        """The gradient of `v` if it is complete after `slots` more slots were dealt with, else None."""
        self.waiting[v] -= slots
        if self.waiting[v] > 0:
            return None
        parts = self.parts.pop(v, None)
        if parts:
            self.complete[v] = parts[0] if len(parts) == 1 else self._sum(v, parts)
        elif v in self.zeros:
            self.complete[v] = self.zeros[v]
        return self.complete.get(v)

    def dense(self, v: int, gradient: Cotangent) -> int:
        """The gradient of `v` in the shape of `v`; rows are added up by a node."""
        if not isinstance(gradient, IndexedSlices):
            return gradient
        emit = self._emit(v)
        values, indices = emit.val(gradient.values), emit.val(gradient.indices)
        made: Val = emit.op("remat::GatherGrad", values, indices, axis=0, input_shape=list(emit.val(v).shape))
        return made.id

    def _sum(self, v: int, parts: Sequence[Cotangent]) -> Cotangent:
        if isinstance(parts[0], IndexedSlices):
            return self._joined(v, [part for part in parts if isinstance(part, IndexedSlices)])
        value = self.builder.values[v]
        total = add_value_like(self.builder, value, f"grad/{value.name}")
        operands = tuple([part for part in parts if not isinstance(part, IndexedSlices)])
        self.builder.append(
            Node(
                f"grad/{value.name}",
                "Add" if len(operands) == 2 else "Sum",
                operands,
                (total,),
                EMPTY,
                Phase.BACKWARD,
                annotations=self._annotations(v),
            )
        )
        return total

    def _joined(self, v: int, parts: Sequence[IndexedSlices]) -> IndexedSlices:
        """Rows of all parts, in the order they came; repeated indices stay."""
        emit = self._emit(v)
        indices: Val = emit.op("Concat", *(emit.val(part.indices) for part in parts), axis=0)
        values: Val = emit.op("Concat", *(emit.val(part.values) for part in parts), axis=0)
        return IndexedSlices(indices.id, values.id)

    def _moved(self, v: int, gradient: Cotangent, device: str) -> Cotangent:
        """The part on the device of the first one."""
        first, value = self.device[v], self.builder.values[v]
        if self.policy.devices != "copy":
            raise CannotDifferentiate(
                f"parts of the gradient of {quoted(value.name)} are made on devices {first} and {device}",
                'read it on one device, or say "devices": "copy"',
                "device_conflict",
            )
        fields = {**self._annotations(v), "copied_from": device, "device": first}

        def copied(part: int) -> int:
            copy = add_value_like(self.builder, self.builder.values[part], f"grad/{value.name}/copy")
            self.builder.node(
                "remat::Copy",
                [part],
                name=f"grad/{value.name}/copy",
                outputs=[copy],
                phase=Phase.BACKWARD,
                annotations=MappingProxyType(fields),
            )
            return copy

        if isinstance(gradient, IndexedSlices):
            return IndexedSlices(copied(gradient.indices), copied(gradient.values))
        return copied(gradient)

    def _refuse_mixture(self, v: int) -> None:
        if self.policy.mixed != "densify":
            raise CannotDifferentiate(
                f"some parts of the gradient of {quoted(self.builder.values[v].name)} are rows, others are dense",
                'leave it out of row_sparse, or say "mixed": "densify"',
                "mixed_gradients",
            )

    def _emit(self, v: int) -> Emit:
        name = f"grad/{self.builder.values[v].name}"
        return Emit(self.builder, name, Phase.BACKWARD, annotations=self._annotations(v))

    def _annotations(self, v: int) -> Mapping[str, Any]:
        """Those of the node that makes `v`, on the device of the first part that has one."""
        node = self.builder.nodes[self.producer[v]] if self.producer[v] >= 0 else None
        found = provenance(node, self.builder.values[v].name)
        return MappingProxyType({**found, "device": self.device[v]}) if v in self.device else found


def add_value_like(builder: Builder, value: Value, name: str) -> int:
    """Id of a new value of the type and bytes of `value`."""
    return builder.value(name, value.type, bytes=value.bytes, fixed_bytes=value.fixed_bytes)


def provenance(node: Node | None, name: str) -> Mapping[str, Any]:
    """Annotations of a gradient node: those of the forward node, and whose gradient it is."""
    return MappingProxyType({**(node.annotations if node else EMPTY), "gradient_of": node.name if node else name})
