"""What a model is called, what it takes, and its hash, which does not depend on the name that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from graph.formats.native.writer import content_hash
from graph.ir import Graph
from graph.limits import Limits

#: Annotation of a graph whose model was given a name: the name of the graph in its file.
GRAPH_NAME = "graph_name"
MAX_INPUTS = 16  # inputs that a record of a model lists


def name_in_file(graph: Graph) -> str | None:
    """Name of the graph in its file, if its model was given another; None for an annotation that cannot be a name."""
    note = graph.annotations.get(GRAPH_NAME)
    return note if isinstance(note, str) and len(note) <= Limits().name_length else None


def with_model_name(graph: Graph, name: str | None) -> Graph:
    """The graph called `name`, with its name so far in the annotation `GRAPH_NAME`; unchanged without a new name."""
    if not name or name == graph.name:
        return graph
    given = name_in_file(graph)
    own = graph.name if given is None else given
    return structs.replace(graph, name=name, annotations={**graph.annotations, GRAPH_NAME: own})


def without_model_name(graph: Graph) -> Graph:
    """The graph called as in its file."""
    own = name_in_file(graph)
    if own is None:
        return graph
    notes = {name: note for name, note in graph.annotations.items() if name != GRAPH_NAME}
    return structs.replace(graph, name=own, annotations=notes)


def model_identity(graph: Graph) -> dict[str, Any]:
    """Names, hash, sizes and inputs of a graph, as reports state them; with `graph_name` if a name was given."""
    own = name_in_file(graph)
    given = {} if own is None else {GRAPH_NAME: own}
    sizes = {"nodes": len(graph.nodes), "values": len(graph.values)}
    hashed = content_hash(without_model_name(graph))
    return {"name": graph.name, **given, "hash": hashed, **sizes, **inputs_and_batch(graph)}


def renamed(identity: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The identity of the same model called `name`."""
    return {**identity, GRAPH_NAME: identity.get(GRAPH_NAME, identity["name"]), "name": name}


def inputs_and_batch(graph: Graph) -> dict[str, Any]:
    """`inputs`: name, dtype and shape of the first `MAX_INPUTS`; `batch`: the leading length that all of them share.

    Scalars do not count for the batch. `shape` is null for an input of which only the size in bytes is known.
    """
    types = [graph.values[v].type for v in graph.inputs]
    leading = {None if type is None else type.shape[0] for type in types if type is None or type.shape}
    inputs = [
        {"name": graph.values[v].name, "dtype": type and type.dtype, "shape": type and list(type.shape)}
        for v, type in zip(graph.inputs[:MAX_INPUTS], types, strict=False)
    ]
    return {"inputs": inputs, "batch": leading.pop() if len(leading) == 1 else None}
