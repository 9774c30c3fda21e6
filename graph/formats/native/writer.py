"""Writer of `remat/1` documents, and the content hashes of graphs."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from graph.formats.native.canonical_text import canonical
from graph.formats.native.mutable_names import mutable_document
from graph.formats.native.write import columns_of, rows_of
from graph.ir import Graph

__all__ = ["FORMS", "canonical", "content_hash", "document", "dump", "shape_hash"]

FORMS = ("rows", "columns", "mutable")


def document(graph: Graph, form: str = "rows") -> dict[str, Any]:
    """The document as plain data, in one of FORMS; "mutable" is rows with mutable names."""
    plain: dict[str, Any] = msgspec.to_builtins(_records(graph, form))
    return plain


def dump(graph: Graph, form: str = "rows", packing: str = "json") -> bytes:
    """Bytes of the document in "json" or "msgpack"; `load` returns an equal graph. Raises ValueError."""
    if packing not in ("json", "msgpack"):
        raise ValueError(f"packing {packing!r}; use json or msgpack")
    encode = msgspec.json.encode if packing == "json" else msgspec.msgpack.encode
    return encode(_records(graph, form))


def content_hash(graph: Graph) -> str:
    """sha256 of the canonical document, names included."""
    return hashlib.sha256(canonical(graph)).hexdigest()


def shape_hash(graph: Graph) -> str:
    """sha256 of the graph without names and annotations: equal for graphs that are the same up to names."""
    return hashlib.sha256(msgspec.json.encode(rows_of(graph, anonymous=True), order="deterministic")).hexdigest()


def _records(graph: Graph, form: str) -> msgspec.Struct:
    if form not in FORMS:
        raise ValueError(f"form {form!r}; use one of {', '.join(FORMS)}")
    if form == "mutable":
        return mutable_document(graph)
    return rows_of(graph) if form == "rows" else columns_of(graph)
