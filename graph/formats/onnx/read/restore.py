"""Restoration of nodes in files written by `remat`: notes are applied and decomposed nodes merged back."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

from graph.errors import BadGraph
from graph.formats.onnx.read.metadata import NodeNote, decode_note, unpacked_attributes
from graph.formats.onnx.read.protos import RawNode, op_name
from graph.ir import Graph
from graph.ir.renumber import restrict_values


def restore_node(raw: RawNode, protos: Sequence[NodeProto], n: int) -> tuple[RawNode, NodeNote, int]:
    """(original node, its note, number of nodes of the file that represent it) for node `n`. Raises BadGraph."""
    note = decode_note(raw.note or "{}", NodeNote, raw.path)
    if note.seeded:
        raw.attributes.pop("seed", None)
    for i in note.unused:
        if i < len(raw.outputs):
            raw.outputs[i] = ""
    expansion = note.expands
    if expansion is None:
        return raw, note, 1
    parts = protos[n : n + len(expansion.parts)]
    written = {name for part in parts for name in part.output}
    same = tuple(op_name(part.domain, part.op_type) for part in parts) == expansion.parts
    if not expansion.parts or not same or not {name for name in expansion.outputs if name} <= written:
        raise BadGraph.one(
            "bad_note",
            raw.path,
            f"nodes that no longer match the expansion of {expansion.op} ({', '.join(expansion.parts[:8])})",
            "the nodes as they were exported",
            "export the graph again, or remove the entry `remat` of this node",
        )
    attributes = unpacked_attributes(expansion.attributes, raw.path)
    original = RawNode(
        expansion.op, expansion.name, list(expansion.inputs), list(expansion.outputs), raw.path, attributes
    )
    return original, note, len(expansion.parts)


def with_value_ids(graph: Graph, ids: Sequence[int]) -> Graph:
    """The graph with value k renumbered to `ids[k]`, its id before the export. Raises BadGraph."""
    if not ids:
        return graph
    if sorted(ids) != list(range(len(graph.values))):
        raise BadGraph.one(
            "bad_note",
            "model.metadata_props[remat].value_ids",
            f"{len(ids)} ids",
            f"each of the {len(graph.values)} value ids once",
            "export the graph again",
        )
    return restrict_values(graph, sorted(range(len(ids)), key=ids.__getitem__))
