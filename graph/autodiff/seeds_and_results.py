"""Both ends of a differentiation: the head gradients it starts from, and what each wanted value gets.

head ──▶ target ... wanted ──▶ its gradient, zeros where nothing comes, a copy where it is another's too
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

SourceGradients = list[tuple[int, Cotangent]]  # (wanted value, its gradient), in the order asked


class CotangentSeeds:
    """Makes values that no rule makes. `constants` and `zeros` are shared with the rules."""

    def __init__(
        self, builder: Builder, graph: Graph, producer: Sequence[int], constants: dict[Any, Val], zeros: set[int]
    ):
        self.builder, self.graph, self.producer = builder, graph, producer
        self.constants, self.zeros = constants, zeros

    def head(self, target: int, head: HeadGradient) -> int:
        """The head gradient: a value that is given, a constant, or ones."""
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
        made = content if content.shape == value.type.shape else emit.expand(content, value.type.shape)
        if isinstance(head, ConstantHead) and not head.content.any():
            self.zeros.add(made.id)
        return made.id

    def zeros_of(self, v: int) -> int:
        """A new value of zeros like `v`. Raises BadGraph when `v` has no type."""
        value = self.builder.values[v]
        if value.type is None:
            raise BadGraph.one(
                "unreachable",
                f"differentiate.with_respect_to.{value.name}",
                f"{quoted(value.name)}, untyped",
                "a typed value where zeros are asked for",
                "declare its shape and dtype",
            )
        return self._emit(f"grad/{value.name}", provenance(None, value.name)).zeros(value.type).id

    def unreached(self, question: GradientSpec, finished: Mapping[int, Cotangent]) -> list[int]:
        """Wanted values that get zeros because no target depends on them. Raises BadGraph where that is an error."""
        missing = [v for v in dict.fromkeys(question.wanted) if v not in finished]
        if question.unreachable == "error":
            findings = Findings()
            for v in missing:
                name, place = self.graph.values[v].name, question.wanted.index(v) + 1
                findings.add(
                    "unreachable",
                    f"differentiate.with_respect_to.{name}",
                    f"{quoted(name)}, on which no target depends (number {place} of the wanted)",
                    "a value a target depends on",
                    'leave it out, or say "unreachable": "null" or "zeros"',
                )
            findings.settle()
        return missing if question.unreachable == "zeros" else []

    def ordered_gradients(self, question: GradientSpec, finished: Mapping[int, Cotangent]) -> SourceGradients:
        """The answer in the order asked; with copies, each gradient stands for one wanted value only."""
        handed_out: set[Cotangent] = set()
        found: SourceGradients = []
        for v in question.wanted if question.copies else dict.fromkeys(question.wanted):
            if v not in finished:
                continue
            gradient = finished[v]
            if question.copies and gradient in handed_out:
                gradient = _each(gradient, functools.partial(self._copy, v))
            handed_out.add(gradient)
            found.append((v, gradient))
        return found

    def _copy(self, v: int, gradient: int) -> int:
        name, made = f"grad/{self.builder.values[v].name}/copy", self.builder.values[gradient]
        copy = self.builder.value(name, made.type, bytes=made.bytes, fixed_bytes=made.fixed_bytes)
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
