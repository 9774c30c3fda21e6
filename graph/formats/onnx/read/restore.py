"""Nodes of files of ours: the note beside a node, and spelled-out nodes put together again."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

from graph.errors import BadGraph
from graph.formats.onnx.read.metadata import NodeNote, decode_note, unpacked_attributes
from graph.formats.onnx.read.protos import RawNode, op_name
from graph.ir import Graph
from graph.ir.renumber import restrict_values


def restore_node(raw: RawNode, protos: Sequence[NodeProto], n: int) -> tuple[RawNode, NodeNote, int]:
    """(the node as the graph had it, its note, how many nodes of the file stand for it) for node `n`."""
    note = decode_note(raw.note or "{}", NodeNote, raw.path)
    if note.seeded:
        raw.attributes.pop("seed", None)
    whole = note.expands
    if whole is None:
        return raw, note, 1
    parts = protos[n : n + len(whole.parts)]
    written = {name for part in parts for name in part.output}
    same = tuple(op_name(part.domain, part.op_type) for part in parts) == whole.parts
    if not whole.parts or not same or not {name for name in whole.outputs if name} <= written:
        raise BadGraph.one(
            "bad_note",
            raw.path,
            f"nodes that no longer spell out {whole.op} ({', '.join(whole.parts[:8])})",
            "the nodes as they were exported",
            "export the graph again, or remove the entry `remat` of this node",
        )
    attributes = unpacked_attributes(whole.attributes, raw.path)
    made = RawNode(whole.op, whole.name, list(whole.inputs), list(whole.outputs), raw.path, attributes)
    return made, note, len(whole.parts)


def with_value_ids(graph: Graph, ids: Sequence[int]) -> Graph:
    """The graph with value k called `ids[k]`, as it was before it was written; ties between equals go by id."""
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
