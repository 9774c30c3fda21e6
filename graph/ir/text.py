"""Human-readable text of graphs, one line a node, and excerpts of documents around a fault.

graph 'one layer', opset 21
input x: float32[64,784]
parameter w1: float32[784,512]
0  fc1: h float32[64,512] = MatMul(x, w1)
outputs: h
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graph.ir.records import ABSENT, UNKNOWN_COST, Graph, Node, Phase, Role, Value

MAX_ATTRIBUTE_CHARS = 60  # characters shown of one attribute


def format_graph(graph: Graph) -> str:
    """The graph as text, one line a node; bodies are indented under their node."""
    return "\n".join(graph_lines(graph))


def graph_lines(graph: Graph, indent: str = "") -> Iterator[str]:
    """The lines of `format_graph`."""
    opset = ", ".join(f"{domain} {version}".strip() for domain, version in graph.opset.items())
    yield f"{indent}graph {graph.name!r}, opset {opset}" + (", order given" if graph.order_is_given else "")
    for value in graph.values:
        if value.role is not Role.ACTIVATION:
            yield f"{indent}{value.role} {_shown(value)}"
    for n, node in enumerate(graph.nodes):
        yield f"{indent}{n}  {format_node(graph, node)}"
        for name, body in node.bodies.items():
            captures = ", ".join(
                f"{_name(body.graph.values[inner])}={_name(graph.values[outer])}" for inner, outer in body.captures
            )
            yield f"{indent}    body {name}({captures}):"
            yield from graph_lines(body.graph, indent + "      ")
    yield f"{indent}outputs: " + ", ".join(_name(graph.values[v]) for v in graph.outputs)


def format_node(graph: Graph, node: Node) -> str:
    """One node on one line: name, outputs with types, op, inputs, then the fields that differ from the defaults."""
    values = graph.values
    outputs = ", ".join("_" if v == ABSENT else _shown(values[v], ":" in values[v].name) for v in node.outputs)
    inputs = ", ".join("_" if v == ABSENT else _name(values[v]) for v in node.inputs)
    attributes = "".join(f" {key}={_short(value)}" for key, value in node.attributes.items())
    return f"{node.name}: {outputs} = {node.op}({inputs}){attributes}" + "".join(_rest(graph, node))


def _rest(graph: Graph, node: Node) -> Iterator[str]:
    values = graph.values
    for word, pairs in (("view of", node.views), ("over", node.in_place), ("maybe over", node.takeover)):
        for output, source in pairs:
            if 0 <= output < len(node.outputs) and 0 <= source < len(node.inputs):
                yield f", {_name(values[node.outputs[output]])} {word} {_name(values[node.inputs[source]])}"
    if node.after:
        yield ", after " + " ".join(graph.nodes[n].name for n in node.after)
    if node.phase is not Phase.FORWARD:
        yield f", {node.phase.name.lower()}"
    if node.effect is not None:
        yield f", {node.effect}"
    for field in ("stream", "recompute", "heavy"):
        if (given := getattr(node, field)) is not None:
            yield f", {field} {given}"
    if node.gradient_reads is not None:
        yield ", gradient reads " + (" ".join(_name(values[v]) for v in node.gradient_reads) or "nothing")
    if node.cost != UNKNOWN_COST:
        for field in ("seconds", "flops", "traffic_bytes", "workspace_bytes"):
            if (given := getattr(node.cost, field)) is not None:
                yield f", {field} {given}"


def _shown(value: Value, colon: bool = True) -> str:
    size = "" if value.bytes is None else f"{value.bytes} bytes" + (" fixed" if value.fixed_bytes else "")
    kind = " ".join(part for part in ("" if value.type is None else str(value.type), size) if part)
    return f"{_name(value)}{':' if colon else ''} {kind or '?'}"


def _name(value: Value) -> str:
    plain = value.name and all(c.isprintable() and c not in " ,=()" for c in value.name)
    return value.name if plain else repr(value.name)


def _short(value: Any) -> str:
    shown = str(value) if not isinstance(value, Mapping) else str(dict(value))
    return shown if len(shown) <= MAX_ATTRIBUTE_CHARS else f"{shown[:MAX_ATTRIBUTE_CHARS]}... ({len(shown)} characters)"


def format_node_context(graph: Graph, n: int, more: int = 1) -> str:
    """The line of node `n`, marked with an arrow, and `more` lines before and after it."""
    shown = range(max(0, n - more), min(len(graph.nodes), n + more + 1))
    return "\n".join(f"{'-->' if m == n else '   '} {m}  {format_node(graph, graph.nodes[m])}" for m in shown)


def excerpt(data: bytes, offset: int, more: int = 1, width: int = 72) -> str:
    """The lines of a document around byte `offset`, numbered from 1, with a caret under the byte.

    >>> print(excerpt(b'{"a": NaN}', 6))
       1 | {"a": NaN}
         |       ^
    """
    offset = min(max(offset, 0), len(data))
    number, result = data.count(b"\n", 0, offset) + 1, []
    start = data.rfind(b"\n", 0, offset) + 1
    for _ in range(more):
        if number == 1:
            break
        start, number = data.rfind(b"\n", 0, start - 1) + 1, number - 1
    at = data.count(b"\n", 0, offset) + 1
    while start <= len(data) and number <= at + more:
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        left = max(start, offset - width // 2) if number == at else start
        shown = data[left : min(end, left + width)].decode("utf-8", "replace").expandtabs(1)
        result.append(f"{number:4} | {shown}")
        if number == at:
            before = data[left:offset].decode("utf-8", "replace")
            result.append("     | " + " " * len(before) + "^")
        start, number = end + 1, number + 1
    return "\n".join(result)
