"""Shapes of the graph inputs: lengths in the file, overridden by the caller's dimensions, inputs and batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnx import ValueInfoProto

from graph.errors import BadGraph, Findings, quoted
from graph.formats.document.shape_overrides import bind_symbols, check_lengths, check_names
from graph.formats.onnx.read.protos import checked
from graph.ir import TensorType
from graph.limits import ShapeOverrides
from graph.ops.registry.onnx_fallback import dtype_name

#: A length as the file gives it: a number, the name of a symbol, or None.
Dimension = int | str | None


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A graph input that is not a weight: declared and bound shape."""

    name: str
    dtype: str
    declared: tuple[Dimension, ...] | None  # None: the file gives no rank
    shape: tuple[int, ...] = ()

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


def declared_type(proto: Any, name: str, path: str) -> tuple[str, tuple[Dimension, ...] | None]:
    """(dtype, lengths) declared by a TypeProto. Raises BadGraph unless it is a tensor of numbers."""
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        raise BadGraph.one(
            "unknown_dtype",
            path,
            f"{quoted(name)} of kind {kind or 'unknown'}",
            "a tensor",
            "export the model with tensors instead of sequences, maps and optionals",
        )
    try:
        dtype = dtype_name(proto.tensor_type.elem_type)
    except ValueError as error:
        raise BadGraph.one(
            "unknown_dtype", path, f"{quoted(name)}: {error}", "a tensor of numbers", "export the model without it"
        ) from None
    if not proto.tensor_type.HasField("shape"):
        return dtype, None
    return dtype, tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in proto.tensor_type.shape.dim
    )


def bind_shapes(protos: Sequence[ValueInfoProto], shapes: ShapeOverrides) -> tuple[list[GraphInput], dict[str, int]]:
    """(inputs with every length bound, length of every symbol). Raises BadGraph listing all unbound lengths.

    Precedence: shapes of inputs, then `dims`, then `batch`, then the file.
    """
    inputs = [GraphInput(p.name, *declared_type(p.type, p.name, f"graph.input[{i}]")) for i, p in enumerate(protos)]
    findings = Findings()
    symbols = dict.fromkeys(d for item in inputs for d in item.declared or () if isinstance(d, str))
    check_names(shapes, [item.name for item in inputs], symbols, findings)
    check_lengths(shapes, findings)
    lengths = dict(shapes.dims)
    for item in inputs:
        if item.name in shapes.inputs:
            _take_symbols(item, shapes.inputs[item.name], lengths, findings)
    findings.settle()
    if shapes.batch is not None:
        for item in inputs:
            if item.declared and isinstance(item.declared[0], str) and item.name not in shapes.inputs:
                lengths.setdefault(item.declared[0], shapes.batch)
    _check_symbols(inputs, shapes, lengths, findings)
    bound = [_bound(item, shapes, lengths, findings) for item in inputs]
    findings.settle()
    return bound, lengths


def _take_symbols(item: GraphInput, shape: tuple[int, ...], lengths: dict[str, int], findings: Findings) -> None:
    """Bind the symbols of an input whose shape is overridden."""
    if item.declared is None:
        return
    if len(item.declared) != len(shape):
        findings.add(
            "wrong_rank",
            f"inputs.{item.name}",
            "x".join(map(str, shape)),
            f"{len(item.declared)} lengths, as the model declares ({_shown(item.declared)})",
            "give all lengths",
        )
        return
    bind_symbols(item.name, item.declared, shape, lengths, findings)


def _check_symbols(
    inputs: Sequence[GraphInput], shapes: ShapeOverrides, lengths: dict[str, int], findings: Findings
) -> None:
    """Add one finding per unbound symbol, with the inputs that use it and the options that bind it."""
    where: dict[str, list[GraphInput]] = {}
    for item in inputs:
        if item.name not in shapes.inputs:
            for symbol in dict.fromkeys(n for n in item.declared or () if isinstance(n, str) and n not in lengths):
                where.setdefault(symbol, []).append(item)
    for symbol, items in where.items():
        shown = ", ".join(f"{quoted(item.name)} ({_shown(item.declared or ())})" for item in items[:4])
        first = items[0]
        batch = ", --batch 8" if first.declared and first.declared[0] == symbol else ""
        findings.add(
            "unbound_dimension",
            f"dims.{symbol}",
            f"{quoted(symbol)} without a length in {shown}",
            "a length",
            f"pass --dim {symbol}=8{batch}, or --input {first.name}={_example(first.declared or (), lengths)}",
        )


def _bound(item: GraphInput, shapes: ShapeOverrides, lengths: dict[str, int], findings: Findings) -> GraphInput:
    """The input with its shape bound; each missing length is a finding."""
    path = f"inputs.{item.name}"
    if item.name in shapes.inputs:
        shape: tuple[int, ...] = shapes.inputs[item.name]
    elif item.declared is None:
        findings.add(
            "unbound_dimension",
            path,
            f"{quoted(item.name)}, whose rank the model does not give",
            "a shape",
            f"pass --input {item.name}=16x3x224x224",
        )
        return item
    else:
        lead = shapes.batch if item.declared and not isinstance(item.declared[0], str) else None
        declared = (lead, *item.declared[1:]) if lead is not None else item.declared
        found = [lengths.get(n) if isinstance(n, str) else n for n in declared]
        for k, n in enumerate(found):
            if n is None and declared[k] is None:
                findings.add(
                    "unbound_dimension",
                    f"{path}.shape[{k}]",
                    f"an unnamed dimension of {quoted(item.name)} ({_shown(item.declared)})",
                    "a length",
                    f"pass --input {item.name}={_example(item.declared, lengths)}{', or --batch 8' if k == 0 else ''}",
                )
        shape = tuple(0 if n is None else n for n in found)
    checked(TensorType(item.dtype, shape), f"input {quoted(item.name)}", path)
    return GraphInput(item.name, item.dtype, item.declared, shape)


def _shown(declared: Sequence[Dimension]) -> str:
    return "x".join("?" if d is None else str(d) for d in declared)


def _example(declared: Sequence[Dimension], lengths: dict[str, int]) -> str:
    return "x".join(str(lengths.get(d, 8) if isinstance(d, str) else 8 if d is None else d) for d in declared)
