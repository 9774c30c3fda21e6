"""Graphs and documents under other names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from graph.formats.native.writer import canonical
from graph.formats.readers import load
from graph.ir import Graph

Json = dict[str, Any]


def renamed(graph: Graph, name: Callable[[str], str]) -> Graph:
    return replace(
        graph,
        values=tuple(replace(value, name=name(value.name)) for value in graph.values),
        nodes=tuple(replace(node, name=name(node.name)) for node in graph.nodes),
    )


def under(document: Json, name: Callable[[str], str]) -> Json:
    return dict(json.loads(canonical(renamed(load(json.dumps(document).encode()), name))))
