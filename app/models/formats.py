"""Output formats of graphs, with file name suffixes and media types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from graph.formats.writers import dump
from graph.ir import Graph
from graph.ir.text import format_graph


@dataclass(frozen=True, slots=True)
class Format:
    """One output format of graphs."""

    name: str
    suffix: str
    media_types: tuple[str, ...]  # the first is the Content-Type of responses
    write: Callable[[Graph], bytes]


def writer_with(exporter: str, **options: str) -> Callable[[Graph], bytes]:
    """Writer of an exporter with options."""
    return lambda graph: dump(graph, exporter, **options)


#: The first suffix that matches a file name wins.
FORMATS: Mapping[str, Format] = {
    format.name: format
    for format in (
        Format(
            "columns", ".columns.json", ("application/vnd.remat.columns+json",), writer_with("native", form="columns")
        ),
        Format(
            "mutable", ".mutable.json", ("application/vnd.remat.mutable+json",), writer_with("native", form="mutable")
        ),
        Format("mxnet", "-symbol.json", ("application/vnd.mxnet.symbol+json",), writer_with("mxnet")),
        Format(
            "paddle-json", ".pir.json", ("application/vnd.paddle.program+json",), writer_with("paddle", form="json")
        ),
        Format("rows", ".json", ("application/json",), writer_with("native")),
        Format(
            "msgpack",
            ".msgpack",
            ("application/msgpack", "application/x-msgpack"),
            writer_with("native", packing="msgpack"),
        ),
        Format(
            "onnx", ".onnx", ("application/onnx", "application/x-onnx", "application/octet-stream"), writer_with("onnx")
        ),
        Format("paddle", ".pdmodel", ("application/vnd.paddle.program",), writer_with("paddle", form="protobuf")),
        Format("caffe2", ".pb", ("application/vnd.caffe2.net",), writer_with("caffe2")),
        Format("caffe2-text", ".pbtxt", ("application/vnd.caffe2.net+text",), writer_with("caffe2", form="text")),
        Format("text", ".txt", ("text/plain",), lambda graph: (format_graph(graph) + "\n").encode()),
    )
}
