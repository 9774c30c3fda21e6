"""Reader of `remat/1` documents: rows or columns, JSON or msgpack."""

from __future__ import annotations

from graph.errors import BadGraph
from graph.formats.document.decode import decode, is_json, is_msgpack
from graph.formats.document.schema import Document
from graph.formats.native import columns, rows
from graph.ir import Graph
from graph.limits import Limits, ShapeOverrides


def sniff(data: bytes) -> bool:
    """True for a JSON or msgpack object that names the format, or has the keys `values` and `nodes`."""
    if not is_json(data) and not is_msgpack(data):
        return False
    return b"remat/" in data or (b'"values"' in data and b'"nodes"' in data)


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """Graph of a document. Raises BadGraph."""
    if len(data) > limits.document_bytes:
        raise BadGraph.one(
            "too_large",
            "document",
            f"{len(data):,} bytes",
            f"at most {limits.document_bytes}",
            "send a smaller model, leave contents out, or raise the limit",
        )
    document = decode(data)
    if isinstance(document, Document):
        return rows.graph_of(document, limits, shapes, len(data))
    return columns.graph_of(document, limits, shapes, len(data))
