"""Lint: legal graphs that look like a mistake. Findings are warnings of the analysis, not errors.

x ──▶ StopGradient ──▶ y, unread        orphan_barrier: readers of x still propagate the gradient
x ──▶ a ──▶ y,  x ──▶ b ──▶ y           overwritten_unread: the first y is never read
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from graph.errors import BadGraph, Finding, Findings, quoted
from graph.ir import ABSENT, Graph, Role
from graph.ssa.analysis import VersionAnalysis, analysis_of
from graph.ssa.naming import naming_of
from graph.transforms.boundary import ValueUses
from graph.transforms.device_placement import base_op, check_placement, device_of

STOP_GRADIENT_OP = "StopGradient"  # in any domain: a gradient ends here; what it writes must be read


def lint_findings(graph: Graph, analysis: VersionAnalysis | None = None) -> list[Finding]:
    """Warnings about a legal graph, at most ten per kind."""
    analysis = analysis or analysis_of(graph)
    kinds: list[Callable[[Graph, VersionAnalysis, Findings], None]] = [
        lambda graph, _, findings: orphan_barriers(graph, (), findings),
        _overwritten_unread,
        _dead,
        _unused,
        _on_two_devices,
    ]
    warnings: list[Finding] = []
    for collect in kinds:
        findings = Findings()
        collect(graph, analysis, findings)
        warnings += findings.kept
    return warnings


def orphan_barriers(graph: Graph, also_read: Collection[int], findings: Findings) -> None:
    """Add a finding for each gradient barrier without a reader: the gradient still passes its input.

    `also_read`: values that count as read. A barrier that overwrites the name it reads is not reported: readers of
    the name read its output.
    """
    barriers = [(n, node) for n, node in enumerate(graph.nodes) if base_op(node) == STOP_GRADIENT_OP]
    if not barriers:
        return
    names = naming_of(graph).names
    read = {v for node in graph.nodes for v in node.reads} | ValueUses.of(graph).results | set(also_read)
    for n, node in barriers:
        own = {names[v] for v in node.reads}
        if read.isdisjoint(node.writes) and own.isdisjoint(names[v] for v in node.writes):
            written = ", ".join(quoted(graph.values[v].name) for v in node.writes)
            findings.add(
                "orphan_barrier",
                f"nodes[{n}]",
                f"{written}, written by {node.op} {quoted(node.name)} and never read",
                "a barrier whose output is read",
                "read its output instead of its input, or remove it",
            )


def _overwritten_unread(graph: Graph, analysis: VersionAnalysis, findings: Findings) -> None:
    table = analysis.table
    next_of = {old: v for v, old in enumerate(table.replaced) if old != ABSENT}
    for v in analysis.unread:
        place = analysis.producers[v]
        if v in next_of and place is not None:
            writer = analysis.producers[next_of[v]]
            by = quoted(graph.nodes[writer[0]].name) if writer is not None else "another node"
            findings.add(
                "overwritten_unread",
                f"nodes[{place[0]}].outputs[{place[1]}]",
                f"{quoted(table.names[v])} at version {table.numbers[v]}, overwritten by {by} before it is read",
                "a version with a reader",
                "read it, write another name, or prune the graph",
            )


def _dead(graph: Graph, analysis: VersionAnalysis, findings: Findings) -> None:
    for n in analysis.dead:
        findings.add(
            "dead_node",
            f"nodes[{n}]",
            f"{quoted(graph.nodes[n].name)}, on which no output depends",
            "nodes that an output or an effect needs",
            "prune the graph, or make its result an output",
        )


def _unused(graph: Graph, analysis: VersionAnalysis, findings: Findings) -> None:
    results = ValueUses.of(graph).results
    for v, value in enumerate(graph.values):
        if value.role is not Role.ACTIVATION and not analysis.consumers[v] and v not in results:
            findings.add(
                "unused_value",
                f"values[{v}]",
                f"{value.role.value} {quoted(value.name)}, which no node reads",
                "values that are read",
                "remove it: it occupies memory for the whole run",
            )


def _on_two_devices(graph: Graph, analysis: VersionAnalysis, findings: Findings) -> None:
    if any(device_of(node) for node in graph.nodes):
        try:
            check_placement(graph)
        except BadGraph as error:
            findings.add_all(error)
