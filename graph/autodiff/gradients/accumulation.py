"""Cotangent accumulation: collects the contributions to the gradient of each value and sums them.

A gradient is complete when every active reader of the value has been differentiated. It is summed at that point, so
that its contributions die early. Up to `MAX_SUM_OPERANDS` contributions make one Sum; more are added pairwise as they
arrive, so that at most two are live.

    x ──▶ a ──▶ ...      contributions to x: from a, b, c.  Visited: c, b, a; after a: grad/x = Sum(c, b, a)
     ├──▶ b ──▶ ...
     ╰──▶ c ──▶ ...

Row-sparse contributions stay row-sparse: indices are concatenated, and so are values.
Contributions known to be zero are dropped, unless there is no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotDifferentiate, quoted
from graph.ir import EMPTY, Node, Phase, TensorType, Val, Value

MAX_SUM_OPERANDS = 7  # operands of one Sum; more make a chain of additions
SYMBOLIC_ZERO = -2  # in place of a value id: a gradient that is zero and not materialized

#: Float types that are computed with; narrower ones hold quantized numbers.
_COMPUTED = frozenset({"float64", "float32", "float16", "bfloat16"})

#: (wanted value, its complete gradient) -> the value that replaces the gradient.
GradientHook = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class IndexedSlices:
    """A row-sparse gradient: values[i] belongs to row indices[i]. Other rows are zero; repeated rows are summed."""

    indices: int  # value ids
    values: int


Cotangent = int | IndexedSlices


@dataclass(frozen=True, slots=True)
class AccumulationPolicy:
    """Handling of contributions that cannot be summed as they are."""

    mixed: str = "error"  # row-sparse and dense contributions to one gradient: "error" or "densify"
    devices: str = "error"  # contributions on different devices: "error", or "copy" to the device of the first


class CotangentAccumulator:
    """Contributions to the gradient of each value, by value id."""

    def __init__(self, builder: Builder, expected: Sequence[int], producer: Sequence[int], policy: AccumulationPolicy):
        self.builder, self.producer, self.policy = builder, producer, policy
        self.pending = list(expected)  # per value: slots that read it and are not done yet
        self.chained = [count > MAX_SUM_OPERANDS for count in expected]
        self.parts: dict[int, list[Cotangent]] = {}
        self.device: dict[int, str] = {}  # value -> device of the first contribution that has one
        self.zeros: dict[int, int] = {}  # value -> a contribution that is zero, or SYMBOLIC_ZERO
        self.complete: dict[int, Cotangent] = {}  # value -> its complete gradient

    def add(self, v: int, gradient: Cotangent, device: str | None = None) -> None:
        """Add a contribution to the gradient of `v`, computed on `device`. Raises CannotDifferentiate."""
        parts = self.parts.setdefault(v, [])
        if device is not None and self.device.setdefault(v, device) != device:
            gradient = self._on_first_device(v, gradient, device)
        if parts and isinstance(parts[-1], IndexedSlices) is not isinstance(gradient, IndexedSlices):
            self._check_mixed(v)
            parts[:] = [self.dense(v, part) for part in parts]
            gradient = self.dense(v, gradient)
        parts.append(gradient)
        if self.chained[v] and len(parts) == 2 and not isinstance(gradient, IndexedSlices):
            self.parts[v] = [self._sum(v, parts)]

    def add_zero(self, v: int, gradient: int = SYMBOLIC_ZERO) -> None:
        """Add a contribution known to be zero; used only when there is no other."""
        self.zeros.setdefault(v, gradient)

    def settle(self, v: int, slots: int) -> Cotangent | None:
        """The gradient of `v` if it is complete after `slots` more slots are done, else None."""
        self.pending[v] -= slots
        if self.pending[v] > 0:
            return None
        parts = self.parts.pop(v, None)
        if parts:
            self.complete[v] = parts[0] if len(parts) == 1 else self._sum(v, parts)
        elif v in self.zeros:
            self.complete[v] = self.zeros[v]
        return self.complete.get(v)

    def dense(self, v: int, gradient: Cotangent) -> int:
        """The gradient in the shape of `v`; a row-sparse one is scattered by a node."""
        if not isinstance(gradient, IndexedSlices):
            return gradient
        emit = self._emit(v)
        values, indices = emit.val(gradient.values), emit.val(gradient.indices)
        scattered: Val = emit.op("remat::GatherGrad", values, indices, axis=0, input_shape=list(emit.val(v).shape))
        return scattered.id

    def _sum(self, v: int, parts: Sequence[Cotangent]) -> Cotangent:
        if isinstance(parts[0], IndexedSlices):
            return self._concatenated(v, [part for part in parts if isinstance(part, IndexedSlices)])
        value = self.builder.values[v]
        operands = tuple([part for part in parts if not isinstance(part, IndexedSlices)])
        quantized = value.type is not None and is_quantized(value.type)
        like = self.builder.values[operands[0]] if quantized else value
        total = add_value_like(self.builder, like, f"grad/{value.name}")
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

    def _concatenated(self, v: int, parts: Sequence[IndexedSlices]) -> IndexedSlices:
        """Rows of all contributions, in order of arrival; repeated indices are kept."""
        emit = self._emit(v)
        indices: Val = emit.op("Concat", *(emit.val(part.indices) for part in parts), axis=0)
        values: Val = emit.op("Concat", *(emit.val(part.values) for part in parts), axis=0)
        return IndexedSlices(indices.id, values.id)

    def _on_first_device(self, v: int, gradient: Cotangent, device: str) -> Cotangent:
        """The contribution copied to the device of the first one."""
        first, value = self.device[v], self.builder.values[v]
        if self.policy.devices != "copy":
            raise CannotDifferentiate(
                f"contributions to the gradient of {quoted(value.name)} are on devices {first} and {device}",
                'read the value on one device, or set "devices": "copy"',
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

    def _check_mixed(self, v: int) -> None:
        if self.policy.mixed != "densify":
            raise CannotDifferentiate(
                f"the gradient of {quoted(self.builder.values[v].name)} has row-sparse and dense contributions",
                'remove the value from row_sparse, or set "mixed": "densify"',
                "mixed_gradients",
            )

    def _emit(self, v: int) -> Emit:
        name = f"grad/{self.builder.values[v].name}"
        return Emit(self.builder, name, Phase.BACKWARD, annotations=self._annotations(v))

    def _annotations(self, v: int) -> Mapping[str, Any]:
        """Provenance of the producer of `v`, with the device of the first contribution that has one."""
        node = self.builder.nodes[self.producer[v]] if self.producer[v] >= 0 else None
        annotations = provenance(node, self.builder.values[v].name)
        return MappingProxyType({**annotations, "device": self.device[v]}) if v in self.device else annotations


def is_quantized(type: TensorType) -> bool:
    """True for integers and floats of 8 bits or less, whose gradients have the float type of their readers."""
    return type.dtype not in _COMPUTED


def add_value_like(builder: Builder, value: Value, name: str) -> int:
    """Id of a new value with the type and byte count of `value`."""
    return builder.value(name, value.type, bytes=value.bytes, fixed_bytes=value.fixed_bytes)


def provenance(node: Node | None, name: str) -> Mapping[str, Any]:
    """Annotations of a gradient node: those of the forward node, and `gradient_of` its name (else `name`)."""
    return MappingProxyType({**(node.annotations if node else EMPTY), "gradient_of": node.name if node else name})
