"""How much of a model is read before it is refused, and the shapes a reader is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graph.ir import EMPTY


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what anybody may send; `app/settings.py` sets them for the service."""

    document_bytes: int = 2 << 30  # of the file or body, decompressed
    nodes: int = 1_000_000
    values: int = 4_000_000
    depth: int = 64  # of nested bodies, and of JSON
    name_length: int = 4_096
    attribute_bytes: int = 16 << 20  # of one attribute or annotation
    constant_bytes: int = 256 << 20  # of constants whose content is kept


@dataclass(frozen=True, slots=True)
class ShapeOverrides:
    """Shapes a caller sets: `--input NAME=16x3x224x224`, `--batch N`, `--dim N=8`."""

    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: EMPTY)
    batch: int | None = None  # leading length of every input
    dims: Mapping[str, int] = field(default_factory=lambda: EMPTY)  # symbolic dimension -> length
    nodes: frozenset[str] = frozenset()  # those that stay nodes, even where their results are known and small

    def lengths(self) -> list[tuple[str, int]]:
        """Every length a caller set, with the field that says it."""
        said = [(f"inputs.{name}", length) for name, shape in self.inputs.items() for length in shape]
        said += [(f"dims.{name}", length) for name, length in self.dims.items()]
        return said + ([("batch", self.batch)] if self.batch is not None else [])
