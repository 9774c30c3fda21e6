"""`remat convert`: a model from one format to another, by extension, with passes on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.cli.commands.files import format_of, read_bytes, to_json, write_graph
from graph.formats.readers import load
from graph.ir import Graph
from graph.limits import ShapeOverrides
from planner.errors import BadRequest

# Imports inside functions: a command imports what it needs, so that `remat --help` answers in under 0.3 s.


def run(source: str, target: Path, shapes: ShapeOverrides, passes: Sequence[str] = ()) -> int:
    """Exit code; the model is written under its new format, after the passes in their order.

    What a pass tells of the graph goes to standard output, and leaves the graph as it is.
    """
    format_of(target)
    graph = apply_passes(load(read_bytes(source), shapes=shapes), passes)
    write_graph(target, graph)
    print(f"written: {target}, {len(graph.nodes)} nodes, {len(graph.values)} values", file=sys.stderr)
    return 0


def apply_passes(graph: Graph, passes: Sequence[str]) -> Graph:
    """The graph after passes written as JSON. Raises BadRequest, BadGraph."""
    if not passes:
        return graph
    from app.models.transforms import apply_pass, parse_pass

    asked = [parse_pass(_decoded(text)) for text in passes]  # all are judged before the first one runs
    for one in asked:
        made = apply_pass(graph, one)
        if isinstance(made, tuple):
            graph, said = made
        else:
            said = made
        if said:
            print(to_json(said))
    return graph


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadRequest.one(
            "unparseable", "--transform", f"{text[:80]!r}: {error}", "a JSON object", 'write {"pass": "prune"}'
        ) from None
