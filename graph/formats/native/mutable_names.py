"""A graph as a document with mutable names: the inverse of the SSA conversion in `graph.ssa.to_ssa`.

w ──▶ step1 ──▶ w/1 (version_of: w)       becomes        w ──▶ step1 ──▶ w

A version gets the original name back unless that would overwrite a live value; otherwise it keeps its own name.
"""

from __future__ import annotations

from graph.formats.document.schema import Document
from graph.formats.native.write import rows_of
from graph.ir import Graph


def mutable_document(graph: Graph) -> Document:
    """The graph as rows with mutable names; reading them returns an equal graph."""
    return rows_of(graph, shared=True)
