"""Live ranges of values in node order: from the writer of each value to its last use.

a ──▶ b ──▶ c ──▶ out        a: nodes 0 to 1      b: 1 to 2      c: 2 to 3      out: 3 to the end
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from graph.analysis.aliasing import last_uses
from graph.execution.run_memory import StorageLifetimes
from graph.ir import Graph


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Live range of a storage, first and last node included; uses of its views count."""

    value: int
    first: int
    last: int  # for a result, the last node of the graph
    bytes: int


def live_ranges_of(
    graph: Graph, lifetimes: StorageLifetimes | None = None, keep: Collection[str] = ()
) -> list[LiveRange]:
    """Live ranges of all storages that nodes write, in write order. O(nodes + reads).

    Results and values named by `keep` are live to the end. A read of the shape alone counts as a use.
    """
    lifetimes = lifetimes or StorageLifetimes(graph)
    last = last_uses(lifetimes.storage, ((*node.reads, *node.writes) for node in graph.nodes))
    held, end = storages_live_at_end(graph, lifetimes, keep), len(graph.nodes) - 1
    return [
        LiveRange(v, n, end if v in held else last[v], lifetimes.bytes_of(v))
        for n, node in enumerate(graph.nodes)
        for _, v in lifetimes.made_by(node)
    ]


def storages_live_at_end(graph: Graph, lifetimes: StorageLifetimes, keep: Collection[str] = ()) -> set[int]:
    """Storages that are live at the end: those of results and of values named by `keep`."""
    held = {lifetimes.storage[v] for v in graph.outputs}
    return held | {lifetimes.storage[v] for v, value in enumerate(graph.values) if keep and value.name in keep}


def free_points(graph: Graph, keep: Collection[str] = ()) -> list[tuple[int, int]]:
    """(value, node after which its bytes may be freed) in node order.

    Excluded: results, values named by `keep`, residents, and values with views, whose bytes are still
    reachable under other names.
    """
    lifetimes = StorageLifetimes(graph)
    return _free_points(lifetimes, live_ranges_of(graph, lifetimes, keep), storages_live_at_end(graph, lifetimes, keep))


def _free_points(
    lifetimes: StorageLifetimes, intervals: Iterable[LiveRange], held: Collection[int]
) -> list[tuple[int, int]]:
    names = lifetimes.names
    points = [(i.last, i.value) for i in intervals if len(names[i.value]) == 1 and i.value not in held]
    return [(v, n) for n, v in sorted(points)]


def live_range_columns(graph: Graph, keep: Collection[str] = ()) -> dict[str, Any]:
    """Live ranges as columns, one entry per value, steps inclusive, and the free points."""
    lifetimes = StorageLifetimes(graph)
    intervals = live_ranges_of(graph, lifetimes, keep)
    free = _free_points(lifetimes, intervals, storages_live_at_end(graph, lifetimes, keep))
    return {
        "value": [graph.values[i.value].name for i in intervals],
        "from_step": [i.first for i in intervals],
        "to_step": [i.last for i in intervals],
        "value_bytes": [i.bytes for i in intervals],
        "free_after": [[graph.values[v].name, graph.nodes[n].name] for v, n in free],
    }
