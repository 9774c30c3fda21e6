"""Checks of the input shapes and named dimensions that a caller overrides, for readers of all formats."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graph.errors import Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.limits import ShapeOverrides


def check_names(shapes: ShapeOverrides, inputs: Sequence[str], dimensions: Collection[str], findings: Findings) -> None:
    """Collect overrides of unknown inputs and of unknown dimensions."""
    for name in shapes.inputs:
        if name not in inputs:
            findings.add(
                "unknown_input",
                f"inputs.{name}",
                f"{quoted(name)}, which is no input of the model",
                "one of " + ", ".join(map(quoted, inputs[:8])),
                did_you_mean(name, inputs, "correct the name"),
            )
    known = ", ".join(map(quoted, sorted(dimensions)[:8]))
    for name in shapes.dims:
        if name not in dimensions:
            findings.add(
                "unknown_dimension",
                f"dims.{name}",
                f"{quoted(name)}, which is no dimension of an input",
                f"one of {known}" if known else "nothing: all lengths are numbers",
                did_you_mean(name, dimensions, "correct the name, or give the shape with --input NAME=16x3x224x224"),
            )


def check_lengths(shapes: ShapeOverrides, findings: Findings) -> None:
    """Collect negative lengths."""
    for path, length in shapes.lengths():
        if length < 0:
            findings.add("negative_size", path, str(length), "a length of 0 or more", "correct it")


def bind_symbols(
    name: str, declared: Sequence[int | str | None], shape: Sequence[int], lengths: dict[str, int], findings: Findings
) -> None:
    """Bind the symbols of an input to the lengths of its override; collect contradictions with earlier bindings."""
    for symbol, length in zip(declared, shape, strict=True):
        if isinstance(symbol, str) and lengths.setdefault(symbol, length) != length:
            findings.add(
                "dimension_conflict",
                f"inputs.{name}",
                f"{length} for dimension {quoted(symbol)}",
                f"{lengths[symbol]}, as given elsewhere",
                "give the dimension one length",
            )
