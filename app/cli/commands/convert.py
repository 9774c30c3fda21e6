"""`remat convert`: convert a model to the format of the output extension, with optional passes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.cli.console.files import demand_writable, format_of, read_bytes, to_json, write_graph
from graph.formats.readers import load
from graph.ir import Graph
from graph.limits import ShapeOverrides
from planner.errors import BadRequest
from planner.request.plan_request import parse_request

# Imports inside functions: passes are loaded if requested.


def run(source: str, target: Path, fields: Mapping[str, Any], passes: Sequence[str] = ()) -> int:
    """Exit code; writes the model after the passes, in order. Analysis passes print their result and keep the graph."""
    format_of(target)
    demand_writable({source: "the model"}, target)
    request = parse_request(fields)
    shapes = ShapeOverrides(request.inputs, request.batch, request.dims, max=request.max)
    graph = apply_passes(load(read_bytes(source), shapes=shapes), passes)
    write_graph(target, graph)
    print(f"written: {target}, {len(graph.nodes)} nodes, {len(graph.values)} values", file=sys.stderr)
    return 0


def apply_passes(graph: Graph, passes: Sequence[str]) -> Graph:
    """The graph after passes given as JSON. Raises BadRequest, BadGraph."""
    if not passes:
        return graph
    from app.models.transforms import apply_pass, parse_pass

    parsed = [parse_pass(_decode(text)) for text in passes]  # validate all before the first one runs
    for one in parsed:
        result = apply_pass(graph, one)
        if isinstance(result, tuple):
            graph, analysis = result
        else:
            analysis = result
        if analysis:
            print(to_json(analysis))
    return graph


def _decode(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadRequest.one(
            "unparseable", "--transform", f"{text[:80]!r}: {error}", "a JSON object", 'write {"pass": "prune"}'
        ) from None
