"""A graph as a document that writes names more than once: what `single_definition` takes apart, put together again.

w ──▶ step1 ──▶ w/1 (version_of: w)       becomes        w ──▶ step1 ──▶ w

Names come back where no live value is written over; the others keep a name of their own.
"""

from __future__ import annotations

from graph.formats.document.schema import Document
from graph.formats.native.write import rows_of
from graph.ir import Graph
from graph.ssa.naming import without_name_order


def mutable_document(graph: Graph) -> Document:
    """The graph as rows under the names its values are versions of; reading it gives an equal graph.

    The order that follows from names written again is left out, since reading puts it back.
    """
    return rows_of(without_name_order(graph), shared=True)
