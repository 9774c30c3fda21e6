"""Ops of the source file recovered from a graph read from it (or rewritten by a plan), for writing the file.

rows  fc/0 Flatten ─┐                                      fc  FullyConnected(x, w, b), not recomputed
      fc   Gemm    ─┴▶ group fc          rewritten by ──▶
      fc   Gemm, run 1                   a plan            ... recomputed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from graph.errors import BadGraph, Finding, Findings, quoted
from graph.formats.shared.rows import Origin
from graph.ir import Graph, Node, Phase


@dataclass(slots=True)
class OpGroup:
    """One op to write. `recompute` is "prefer", "never", or None when unspecified."""

    origin: Origin
    nodes: list[int]
    phase: Phase
    recompute: str | None = None
    name: str = ""  # of the op in the graph


def op_groups(graph: Graph, framework: str, strict: bool = True) -> list[OpGroup]:
    """Ops of the framework's file in order. Raises BadGraph naming nodes without an op of the framework,
    unless `strict` is false.

    In a graph rewritten by a plan, the first run of a node stands for the op of the file; an op whose last part is
    recomputed is "prefer", all others "never". Nodes added by differentiation are left out: the framework
    differentiates the file itself.
    """
    found: dict[str, OpGroup] = {}
    parts: dict[str, dict[int, Origin]] = {}
    recomputed: set[str] = set()
    findings = Findings()
    for n, node in enumerate(graph.nodes):
        if "gradient_of" in node.annotations:
            continue
        origin, run = origin_of(node, framework), run_of(node)
        if origin is None:
            if node.phase is Phase.FORWARD and run == 0:
                _foreign(findings, n, node, framework)
        elif run > 0:
            if not origin.part_of:  # a recomputed part, such as a view, does not recompute the whole op
                recomputed.add(origin.id)
        elif origin.part_of:
            parts.setdefault(origin.part_of, {})[n] = origin
        else:
            found.setdefault(origin.id, OpGroup(origin, [n], node.phase, node.recompute, node.name))
    for key in [key for key in parts if key not in found]:  # a pass removed the last node of the op
        whole = [(n, origin) for n, origin in parts[key].items() if origin.id]
        node = graph.nodes[next(iter(parts[key]))]
        if whole:
            n, origin = whole[-1]
            del parts[key][n]
            found[key] = OpGroup(origin, [n], node.phase, node.recompute, origin.id)
            continue
        findings.add(
            "not_representable",
            f"node {quoted(node.name)}",
            f"{node.op}, a part of the {framework} op {quoted(key)}, of which no output is left",
            "a node that writes an output of the op",
            "write the graph as rows or ONNX",
        )
    if strict:
        findings.settle()
    is_plan = any(_is_from_plan(node, framework) for node in graph.nodes)
    for key, group in found.items():
        group.nodes[:0] = parts.get(key, ())
        if is_plan and group.phase is Phase.FORWARD:
            group.recompute = "prefer" if key in recomputed else "never"
    return sorted(found.values(), key=lambda group: group.nodes[-1])


def _is_from_plan(node: Node, framework: str) -> bool:
    """True for a recomputed node, and for a backward or update node without an op of the framework."""
    return run_of(node) > 0 or (node.phase is not Phase.FORWARD and framework not in node.annotations)


def note_of(graph: Graph, framework: str) -> Mapping[str, Any]:
    """The framework's annotation of the graph (header of its file); empty for graphs from other sources."""
    note = graph.annotations.get(framework, {})
    return note if isinstance(note, Mapping) else {}


def run_of(node: Node) -> int:
    """Index of this run of its node in a graph rewritten by a plan; 0 elsewhere."""
    origin = node.annotations.get("origin")
    if isinstance(origin, list | tuple) and len(origin) == 2 and isinstance(origin[1], int):
        return origin[1]
    return 0


def origin_of(node: Node, framework: str) -> Origin | None:
    """The framework's annotation of a node; None without one. Raises BadGraph."""
    note = node.annotations.get(framework)
    if note is None:
        return None
    try:
        return msgspec.convert(note, Origin)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadGraph.one(
            "bad_note",
            f"node {quoted(node.name)}",
            f"annotation {framework}: {error}",
            "the annotation written by the reader",
            "read the file again, or remove the annotation",
        ) from None


def _foreign(findings: Findings, n: int, node: Node, framework: str) -> None:
    findings.add(
        "not_representable",
        f"nodes[{n}]",
        f"{node.op} {quoted(node.name)}, which has no {framework} op",
        f"an op of {framework}",
        f"write the graph as rows, or plan a model read from a {framework} file",
    )


def not_representable(path: str, found: str, expected: str) -> BadGraph:
    """Error for a graph element that the format cannot represent."""
    return BadGraph([Finding("not_representable", path, found, expected, "write the graph as rows or ONNX")])
