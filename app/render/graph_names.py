"""Nodes and values of a graph in text: their names with what they are."""

from __future__ import annotations

from app.render.text import format_bytes
from graph.ir import Graph, Node, Value


def describe_type(value: Value) -> str:
    """Dtype and shape of a value, or its bytes where the graph states no more.

    Example:
        float32[16,96,56,56]
    """
    return format_bytes(value.nbytes) if value.type is None else str(value.type)


def describe_node(graph: Graph, node: Node) -> str:
    """Name, op and first output of a node, and the module that it comes from if the graph says so.

    Example:
        n15 Concat float32[16,96,56,56] features.denseblock1
    """
    written = [describe_type(graph.values[v]) for v in node.writes[:1]]
    module = node.annotations.get("module")
    return " ".join([node.name, node.op, *written, *([str(module)] if module else [])])
