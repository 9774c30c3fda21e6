"""Everything the version table tells of a program at once: who writes, who reads, what is missing, what is for nothing.

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
from graph.ssa.naming import versions_of_graph, without_name_order
from graph.ssa.version_table import OpSlot, VersionTable, versions_of

_ACTING = (Effect.ONCE, Effect.COLLECTIVE)


@dataclass(frozen=True, eq=False, slots=True)
class VersionAnalysis:
    """The table of a program and what follows from it; ops and versions by number."""

    table: VersionTable
    producers: list[OpSlot | None]  # per version
    consumers: list[list[OpSlot]]  # per version
    undefined: list[int]  # versions read although no op makes them, in order of first read
    dead: list[int]  # ops on which no result and no effect depends
    unread: list[int]  # versions that an op writes, nobody reads and that are no result


def analysis_of(graph: Graph, start: Mapping[str, int] = EMPTY) -> VersionAnalysis:
    """The analysis of a graph, under its names where they are written more than once. O(nodes + reads).

    `start` are numbers that names come with.
    """
    graph = without_name_order(graph)
    results = [*graph.outputs, *(gradient for _, gradient in graph.gradients)]
    acting = [n for n, node in enumerate(graph.nodes) if has_side_effects(graph, node)]
    return _analysis(versions_of_graph(graph, start), results, acting, [node.after for node in graph.nodes])


def analysis_of_document(document: Document, start: Mapping[str, int] = EMPTY) -> VersionAnalysis:
    """The analysis of a program as it was sent: sizes need not be known. `start` as in `versions_of`."""
    table = versions_of(document, start)
    named = [*document.outputs, *document.gradients.values()]
    results = [table.final[name] for name in named if name in table.final]
    given = {value.name for value in document.values if value.role != Role.ACTIVATION.value}
    acting = [n for n, row in enumerate(document.nodes) if _row_acts(row, given)]
    place: dict[str, int] = {}
    if any(row.after for row in document.nodes):
        place = {row.name: n for n, row in enumerate(document.nodes)}
    after = [[place[name] for name in row.after if name in place] if row.after else () for row in document.nodes]
    return _analysis(table, results, acting, after)


def _row_acts(row: NodeRow, given: set[str]) -> bool:
    """As `graph.transforms.dead_code.acts`, for a row."""
    effect = row.effect
    if effect is None:
        record = find_op(row.op)
        effect = record.effect.value if record is not None else None
    return effect in _ACTING or any(source in given for source in row.in_place.values())


def _analysis(
    table: VersionTable, results: Sequence[int], acting: Iterable[int], after: Sequence[Sequence[int]]
) -> VersionAnalysis:
    producers, consumers = table.producers(), table.consumers()
    maker = [-1 if place is None else place[0] for place in producers]
    alive = reachable_nodes([*acting, *(maker[v] for v in results if maker[v] >= 0)], table.reads, maker, after)
    kept = set(results)
    return VersionAnalysis(
        table,
        producers,
        consumers,
        table.undefined(),
        [op for op in range(len(table.reads)) if not alive[op]],
        [v for v, place in enumerate(producers) if place is not None and not consumers[v] and v not in kept],
    )


def analysis_json(graph: Graph, found: VersionAnalysis | None = None) -> dict[str, Any]:
    """The analysis of a graph as JSON: columns with one entry a value; nodes by place, names with numbers."""
    found = found or analysis_of(graph)
    table = found.table
    return {
        "value": [value.name for value in graph.values],
        "name": table.names,
        "version": table.numbers,
        "producer": [None if place is None else list(place) for place in found.producers],
        "consumers": [[list(place) for place in places] for places in found.consumers],
        "nodes": [node.name for node in graph.nodes],
        "inputs": [list(read) for read in table.reads],
        "outputs": [list(written) for written in table.writes],
        "final": table.final_numbers(),
        "undefined": [list(table.version(v)) for v in found.undefined],
        "unread": [list(table.version(v)) for v in found.unread],
        "dead": [graph.nodes[n].name for n in found.dead],
        "gradients": [[list(table.version(p)), list(table.version(g))] for p, g in graph.gradients],
    }
