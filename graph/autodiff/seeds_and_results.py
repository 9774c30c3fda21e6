"""Cotangent seeds and final gradients: head gradients of targets, and the gradient returned for each wanted value.

head ──▶ target ... wanted ──▶ gradient; zeros when unreachable; a copy when another value has the same gradient
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from graph.autodiff.gradients.accumulation import Cotangent, IndexedSlices, provenance
from graph.autodiff.gradients.spec import ConstantHead, GradientSpec, HeadGradient
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import BadGraph, Findings, quoted
from graph.ir import Graph, Phase, Role, Val

SourceGradients = list[tuple[int, Cotangent]]  # (wanted value, its gradient), in the order of the request


class CotangentSeeds:
    """Values that no gradient rule emits: seeds, zeros, copies. `constants` and `zeros` are shared with the rules."""

    def __init__(
        self, builder: Builder, graph: Graph, producer: Sequence[int], constants: dict[Any, Val], zeros: set[int]
    ):
        self.builder, self.graph, self.producer = builder, graph, producer
        self.constants, self.zeros = constants, zeros

    def head(self, target: int, head: HeadGradient) -> int:
        """Id of the head gradient of `target`: a given value, a constant, or ones."""
        if isinstance(head, int):
            return head
        value = self.builder.values[target]
        name = f"grad/{value.name}/head"
        if value.type is None:
            return self.builder.value(name, None, Role.CONSTANT, bytes=value.bytes, fixed_bytes=value.fixed_bytes)
        producer = self.producer[target]
        node = self.builder.nodes[producer] if producer >= 0 else None
        emit = self._emit(name, provenance(node, value.name))
        content = emit.constant(1 if head is None else head.content, value.type.dtype)
        seed = content if content.shape == value.type.shape else emit.expand(content, value.type.shape)
        if isinstance(head, ConstantHead) and not head.content.any():
            self.zeros.add(seed.id)
        return seed.id

    def zeros_of(self, v: int) -> int:
        """Id of a new value of zeros with the type of `v`. Raises BadGraph when `v` has no type."""
        value = self.builder.values[v]
        if value.type is None:
            raise BadGraph.one(
                "unreachable",
                f"differentiate.with_respect_to.{value.name}",
                f"{quoted(value.name)}, untyped",
                'a typed value for "unreachable": "zeros"',
                "declare its shape and dtype",
            )
        return self._emit(f"grad/{value.name}", provenance(None, value.name)).zeros(value.type).id

    def unreached(self, spec: GradientSpec, finished: Mapping[int, Cotangent]) -> list[int]:
        """Wanted values to fill with zeros: no target depends on them. Raises BadGraph with `unreachable` "error"."""
        missing = [v for v in dict.fromkeys(spec.wanted) if v not in finished]
        if spec.unreachable == "error":
            findings = Findings()
            for v in missing:
                name, place = self.graph.values[v].name, spec.wanted.index(v) + 1
                findings.add(
                    "unreachable",
                    f"differentiate.with_respect_to.{name}",
                    f"{quoted(name)} (entry {place}): no target depends on it",
                    "a value that a target depends on",
                    'remove it, or set "unreachable" to "null" or "zeros"',
                )
            findings.settle()
        return missing if spec.unreachable == "zeros" else []

    def ordered_gradients(self, spec: GradientSpec, finished: Mapping[int, Cotangent]) -> SourceGradients:
        """(wanted value, gradient) in the order of the request; with `copies`, no two entries share a gradient."""
        returned: set[Cotangent] = set()
        pairs: SourceGradients = []
        for v in spec.wanted if spec.copies else dict.fromkeys(spec.wanted):
            if v not in finished:
                continue
            gradient = finished[v]
            if spec.copies and gradient in returned:
                gradient = _each(gradient, functools.partial(self._copy, v))
            returned.add(gradient)
            pairs.append((v, gradient))
        return pairs

    def _copy(self, v: int, gradient: int) -> int:
        name, source = f"grad/{self.builder.values[v].name}/copy", self.builder.values[gradient]
        copy = self.builder.value(name, source.type, bytes=source.bytes, fixed_bytes=source.fixed_bytes)
        self.builder.node(
            "remat::Copy",
            [gradient],
            name=name,
            outputs=[copy],
            phase=Phase.BACKWARD,
            annotations=MappingProxyType({"gradient_of": self.builder.values[v].name, "copy": True}),
        )
        return copy

    def _emit(self, name: str, annotations: Mapping[str, Any]) -> Emit:
        return Emit(self.builder, name, Phase.BACKWARD, self.constants, self.zeros, annotations=annotations)


def _each(gradient: Cotangent, change: Callable[[int], int]) -> Cotangent:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(change(gradient.indices), change(gradient.values))
    return change(gradient)
