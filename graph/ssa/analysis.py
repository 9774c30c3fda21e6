"""Version analysis of a program: producers, consumers, undefined reads, dead ops and unread versions.

a: x ──▶ y    b: y ──▶ y    c: x ──▶ y        outputs y:  y@3 is final, a and b are dead, x@0 is undefined
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.analysis.effects import has_side_effects
from graph.formats.document.schema import Document, NodeRow
from graph.ir import EMPTY, Effect, Graph, Role
from graph.ir.reachability import reachable_nodes
from graph.ops.registry import find_op
from graph.ssa.naming import versions_of_graph
from graph.ssa.version_table import OpSlot, VersionTable, versions_of

_SIDE_EFFECTS = (Effect.ONCE, Effect.COLLECTIVE)


@dataclass(frozen=True, eq=False, slots=True)
class VersionAnalysis:
    """The version table of a program and derived facts; ops and versions by id."""

    table: VersionTable
    producers: list[OpSlot | None]  # per version
    consumers: list[list[OpSlot]]  # per version
    undefined: list[int]  # versions read but not written by an op, in order of first read
    dead: list[int]  # ops on which no result and no side effect depends
    unread: list[int]  # versions written by an op, never read, and not a result


def analysis_of(graph: Graph, start: Mapping[str, int] = EMPTY) -> VersionAnalysis:
    """The analysis of a graph, with versions of the names that are written more than once. O(nodes + reads).

    `start`: name -> its initial version number.
    """
    results = [*graph.outputs, *(gradient for _, gradient in graph.gradients)]
    with_side_effects = [n for n, node in enumerate(graph.nodes) if has_side_effects(graph, node)]
    return _analysis(versions_of_graph(graph, start), results, with_side_effects, [node.after for node in graph.nodes])


def analysis_of_document(document: Document, start: Mapping[str, int] = EMPTY) -> VersionAnalysis:
    """The analysis of an unvalidated document, whose sizes may be unknown. `start` as in `versions_of`."""
    table = versions_of(document, start)
    named = [*document.outputs, *document.gradients.values()]
    results = [table.final[name] for name in named if name in table.final]
    given = {value.name for value in document.values if value.role != Role.ACTIVATION.value}
    with_side_effects = [n for n, row in enumerate(document.nodes) if _has_side_effects(row, given)]
    row_of: dict[str, int] = {}
    if any(row.after for row in document.nodes):
        row_of = {row.name: n for n, row in enumerate(document.nodes)}
    after = [[row_of[name] for name in row.after if name in row_of] if row.after else () for row in document.nodes]
    return _analysis(table, results, with_side_effects, after)


def _has_side_effects(row: NodeRow, given: set[str]) -> bool:
    """Same as `graph.analysis.effects.has_side_effects`, for a row of a document."""
    effect = row.effect
    if effect is None:
        record = find_op(row.op)
        effect = record.effect.value if record is not None else None
    return effect in _SIDE_EFFECTS or any(source in given for source in row.in_place.values())


def _analysis(
    table: VersionTable, results: Sequence[int], with_side_effects: Iterable[int], after: Sequence[Sequence[int]]
) -> VersionAnalysis:
    producers, consumers = table.producers(), table.consumers()
    producer = [-1 if place is None else place[0] for place in producers]
    alive = reachable_nodes(
        [*with_side_effects, *(producer[v] for v in results if producer[v] >= 0)], table.reads, producer, after
    )
    returned = set(results)
    return VersionAnalysis(
        table,
        producers,
        consumers,
        table.undefined(),
        [op for op in range(len(table.reads)) if not alive[op]],
        [v for v, place in enumerate(producers) if place is not None and not consumers[v] and v not in returned],
    )


def analysis_json(graph: Graph, analysis: VersionAnalysis | None = None) -> dict[str, Any]:
    """The analysis of a graph as JSON: columns with one entry per value; nodes by index, versions as [name, number]."""
    analysis = analysis or analysis_of(graph)
    table = analysis.table
    return {
        "value": [value.name for value in graph.values],
        "name": table.names,
        "version": table.numbers,
        "producer": [None if place is None else list(place) for place in analysis.producers],
        "consumers": [[list(place) for place in places] for places in analysis.consumers],
        "nodes": [node.name for node in graph.nodes],
        "inputs": [list(read) for read in table.reads],
        "outputs": [list(written) for written in table.writes],
        "overwrite_order": table.overwrite_order(),
        "final": table.final_numbers(),
        "undefined": [list(table.version(v)) for v in analysis.undefined],
        "unread": [list(table.version(v)) for v in analysis.unread],
        "dead": [graph.nodes[n].name for n in analysis.dead],
        "gradients": [[list(table.version(p)), list(table.version(g))] for p, g in graph.gradients],
    }
