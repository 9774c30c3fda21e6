"""`remat convert`: a model from one format to another, by extension."""

from __future__ import annotations

import sys
from pathlib import Path

from app.commands.files import format_of, read_bytes, write_graph
from graph.importers import load
from graph.limits import Shapes


def run(source: str, target: Path, shapes: Shapes) -> int:
    """Exit code; the model is written under its new format."""
    format_of(target)
    graph = load(read_bytes(source), shapes=shapes)
    write_graph(target, graph)
    print(f"written: {target}, {len(graph.nodes)} nodes, {len(graph.values)} values", file=sys.stderr)
    return 0
