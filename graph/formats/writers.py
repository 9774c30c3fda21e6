"""Writers of model files. Each is a file with `dump(graph, **options) -> bytes`."""

from __future__ import annotations

import importlib
from typing import Any

from graph.errors import BadGraph
from graph.ir import Graph

#: Format -> module below this package, imported when first needed.
WRITERS = {name: f"{name}.writer" for name in ("native", "onnx", "mxnet", "caffe2", "paddle")}


def dump(graph: Graph, format: str, **options: Any) -> bytes:
    """The graph as a file of a format in `WRITERS`. Raises BadGraph for an unknown format."""
    if format not in WRITERS:
        raise BadGraph.one(
            "unknown_format", "format", repr(format), "one of " + ", ".join(WRITERS), "choose one of these"
        )
    data: bytes = importlib.import_module(f"{__package__}.{WRITERS[format]}").dump(graph, **options)
    return data
