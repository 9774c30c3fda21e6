"""Size limits of model readers, and what callers override: input shapes, roles of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graph.ir import EMPTY


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds on a document; `app/settings.py` sets them for the service."""

    document_bytes: int = 2 << 30  # of the file or body, decompressed
    nodes: int = 1_000_000
    values: int = 4_000_000
    depth: int = 64  # of nested bodies, and of JSON
    name_length: int = 4_096
    attribute_bytes: int = 16 << 20  # of one attribute or annotation
    constant_bytes: int = 256 << 20  # of constants whose content is loaded


@dataclass(frozen=True, slots=True)
class ShapeOverrides:
    """Set by the caller: `--input NAME=16x3x224x224`, `--batch N`, `--dim N=8`, `--max NAME=N`; roles of tensors."""

    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: EMPTY)
    batch: int | None = None  # length of axis 0 of every input
    dims: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # symbolic dimension -> length
    nodes: frozenset[str] = frozenset()  # names of nodes excluded from constant folding
    trainable: tuple[str, ...] = ()  # patterns of names of trained tensors
    frozen: tuple[str, ...] = ()  # patterns of names of tensors that are not trained, unless `trainable` matches
    max: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # value or loop -> largest length, or iterations

    def lengths(self) -> list[tuple[str, int]]:
        """(field, length) of every length set by the caller."""
        lengths = [(f"inputs.{name}", length) for name, shape in self.inputs.items() for length in shape]
        lengths += [(f"dims.{name}", length) for name, length in self.dims.items()]
        lengths += [(f"max.{name}", length) for name, length in self.max.items()]
        return lengths + ([("batch", self.batch)] if self.batch is not None else [])
