"""Readers of model files. Each is a file with `sniff(data) -> bool` and `load(data, limits, shapes) -> Graph`."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from msgspec.structs import replace

from graph.errors import BadGraph, quoted
from graph.formats.unsupported_files import describe
from graph.gc_pause import gc_paused
from graph.ir import IMPORT_WARNINGS, Graph
from graph.limits import Limits, ShapeOverrides

#: Name -> module below this package, in the order of the attempts. Imported lazily: `remat --help` loads none.
READERS = {
    "native": "native.reader",
    "mxnet": "mxnet.reader",
    "onnx": "onnx.read",
    "caffe2": "caffe2",
    "paddle": "paddle.load",
    "stablehlo": "stablehlo",
}


def importer_of(data: bytes) -> str:
    """Name of the first reader whose `sniff` accepts the bytes. Raises BadGraph when none does."""
    for name in READERS:
        if _module(name).sniff(data):
            return name
    kind, remedy = describe(data)
    raise BadGraph.one(
        "unknown_format", "document", kind, "a remat/1, ONNX, MXNet, Caffe2, Paddle or StableHLO file", remedy
    )


def name_of_file(path: str | os.PathLike[str], data: bytes) -> str | None:
    """Name of the model in a framework's file: the file's without its suffix; None for a native document.

    Raises BadGraph for a file of another kind.

    Example:
        name_of_file("models/resnet50.onnx", data) == "resnet50"
    """
    return None if importer_of(data) == "native" else re.sub(r"(-symbol|\.pir)$", "", Path(path).stem)


def load(data: bytes, limits: Limits | None = None, shapes: ShapeOverrides | None = None) -> Graph:
    """Graph of a model file in any format of `READERS`. Raises BadGraph."""
    limits = limits or Limits()
    if len(data) > limits.document_bytes:
        raise BadGraph.one(
            "too_large",
            "document",
            f"{len(data):,} bytes",
            f"at most {limits.document_bytes}",
            "send a smaller model, strip its weights, or raise the limit",
        )
    shapes = shapes or ShapeOverrides()
    with gc_paused():
        importer = importer_of(data)
        check_max(shapes.max, importer)
        graph: Graph = _module(importer).load(data, limits, shapes)
    return graph if shapes.batch is None else _with_batch(graph, shapes, importer)


def check_max(given: Mapping[str, int], importer: str) -> None:
    """Raise BadGraph for entries of the request field `max`, which only the ONNX reader applies."""
    if given and importer != "onnx":
        name = next(iter(given))
        raise BadGraph.one(
            "unknown_value",
            f"max.{name}",
            f"{quoted(name)} in a model that is no ONNX file ({importer})",
            "an ONNX file",
            "declare shapes and `max_trips` in the document, or set max when the ONNX file is posted or converted",
        )


def _with_batch(graph: Graph, shapes: ShapeOverrides, importer: str) -> Graph:
    """The graph, which warns if `dims` and `inputs` replace the batch everywhere. Raises BadGraph if no input has one.

    The batch is the leading length of an input; in MXNet a layout names the axis.
    """
    axes = slice(None if importer == "mxnet" else 1)
    types = [graph.values[v].type for v in graph.inputs]
    if any(shapes.batch in type.shape[axes] for type in types if type is not None):
        return graph
    if not shapes.dims and not shapes.inputs:
        found, expected = f"{shapes.batch}, which changes no input", "an input with a leading length"
        raise BadGraph.one("cannot_rebind", "batch", found, expected, "leave the batch out")
    warning = f"batch {shapes.batch} changes no input, since dims and inputs give their leading lengths"
    return replace(graph, annotations={**graph.annotations, IMPORT_WARNINGS: [*import_warnings(graph), warning]})


def import_warnings(graph: Graph) -> list[str]:
    """Warnings of the reader of the graph's file; empty for other graphs."""
    entry = graph.annotations.get(IMPORT_WARNINGS, ())
    return [str(warning) for warning in entry] if isinstance(entry, list | tuple) else []


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{READERS[name]}")
