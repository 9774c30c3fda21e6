"""Lives of values in a graph run in its own order: from the node that writes each to the last that uses it.

a ──▶ b ──▶ c ──▶ out        a: nodes 0 to 1      b: 1 to 2      c: 2 to 3      out: 3 to the end
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from graph.execution.run_memory import StorageLifetimes
from graph.ir import Graph


@dataclass(frozen=True, slots=True)
class LiveRange:
    """The life of a value that has bytes of its own; all its views count. Both nodes are included."""

    value: int
    first: int
    last: int  # the last node of all for a result
    bytes: int


def live_ranges_of(graph: Graph, lives: StorageLifetimes | None = None, keep: Collection[str] = ()) -> list[LiveRange]:
    """Of all values that are not there from the start, in the order they are written. O(nodes + reads).

    Results and values named by `keep` live to the end.
    """
    lives = lives or StorageLifetimes(graph)
    last, held, end = _last_uses(graph, lives), storages_live_at_end(graph, lives, keep), len(graph.nodes) - 1
    return [
        LiveRange(v, n, end if v in held else last[v], lives.bytes_of(v))
        for n, node in enumerate(graph.nodes)
        for _, v in lives.made_by(node)
    ]


def storages_live_at_end(graph: Graph, lives: StorageLifetimes, keep: Collection[str] = ()) -> set[int]:
    """Storages that are there to the end: those of results and of values named by `keep`."""
    held = {lives.storage[v] for v in graph.outputs}
    return held | {lives.storage[v] for v, value in enumerate(graph.values) if keep and value.name in keep}


def free_points(graph: Graph, keep: Collection[str] = ()) -> list[tuple[int, int]]:
    """(value, node after which its bytes may be freed) in node order, each value once.

    Left out are results, values named by `keep`, what is there from the start, and values that have
    views: a free names one value, and its bytes are still seen under the other names.
    """
    lives = StorageLifetimes(graph)
    return _free_points(lives, live_ranges_of(graph, lives, keep), storages_live_at_end(graph, lives, keep))


def _free_points(
    lives: StorageLifetimes, intervals: Iterable[LiveRange], held: Collection[int]
) -> list[tuple[int, int]]:
    names = lives.names
    points = [(i.last, i.value) for i in intervals if len(names[i.value]) == 1 and i.value not in held]
    return [(v, n) for n, v in sorted(points)]


def _last_uses(graph: Graph, lives: StorageLifetimes) -> dict[int, int]:
    """Storage -> the last node that reads or writes it under any name; a read of the shape is one too."""
    storage, last = lives.storage, {}
    for n, node in enumerate(graph.nodes):
        for v in node.reads:
            last[storage[v]] = n
        for v in node.writes:
            last[storage[v]] = n
    return last


def live_range_columns(graph: Graph, keep: Collection[str] = ()) -> dict[str, Any]:
    """Columns with one entry a value, steps inclusive, and the node after which each value may be freed."""
    lives = StorageLifetimes(graph)
    intervals = live_ranges_of(graph, lives, keep)
    free = _free_points(lives, intervals, storages_live_at_end(graph, lives, keep))
    return {
        "value": [graph.values[i.value].name for i in intervals],
        "from_step": [i.first for i in intervals],
        "to_step": [i.last for i in intervals],
        "value_bytes": [i.bytes for i in intervals],
        "free_after": [[graph.values[v].name, graph.nodes[n].name] for v, n in free],
    }
