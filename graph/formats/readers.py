"""Readers of model files. Each is a file with `sniff(data) -> bool` and `load(data, limits, shapes) -> Graph`."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

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
    if shapes.batch is not None:
        _check_batch(graph, shapes.batch, importer)
    return graph


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


def _check_batch(graph: Graph, batch: int, importer: str) -> None:
    """Raise BadGraph if no input has the batch as its leading length, or in MXNet, where a layout names the axis."""
    axes = slice(None if importer == "mxnet" else 1)
    types = [graph.values[v].type for v in graph.inputs]
    if not any(batch in type.shape[axes] for type in types if type is not None):
        raise BadGraph.one(
            "cannot_rebind",
            "batch",
            f"{batch}, which changes no input",
            "an input whose leading length is neither in `dims` nor in `inputs`",
            "leave the batch out, or the length that replaces it",
        )


def import_warnings(graph: Graph) -> list[str]:
    """Warnings of the reader of the graph's file; empty for other graphs."""
    entry = graph.annotations.get(IMPORT_WARNINGS, ())
    return [str(warning) for warning in entry] if isinstance(entry, list | tuple) else []


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{READERS[name]}")
