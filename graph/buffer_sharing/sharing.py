"""Values under shared names: what a framework with named blobs, or a fixed list of buffers, runs.

data ──fc1──▶ x ──fc2──▶ y ──fc3──▶ z          names      data  x  y  x          z lies where x was

A name may be taken again once its content has been read for the last time; an op writes over what it
reads only where it may (`inplace_candidates`, `in_place`); an op never writes one name twice; names do not
cross devices. `shared_program.py` holds all of that against any assignment, and writes the program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph.analysis.aliasing import inplace_candidates
from graph.buffer_sharing.assign import assign_buffers
from graph.buffer_sharing.live_ranges import LiveRange, live_range_columns, live_ranges_of, storages_live_at_end
from graph.execution.run_memory import StorageLifetimes
from graph.ir import Graph, producers
from graph.transforms.device_placement import DEVICE, copy_route, device_of


def value_devices(graph: Graph) -> list[str | None]:
    """Per value the device it lies on: what it says itself, else where the node that writes it has its outputs."""
    found: list[str | None] = []
    for value, n in zip(graph.values, producers(graph), strict=True):
        own = value.annotations.get(DEVICE)
        if own is None and n >= 0:
            node = graph.nodes[n]
            own = (copy_route(node) or (None, None))[1] or device_of(node)
        found.append(None if own is None else str(own))
    return found


@dataclass(frozen=True, eq=False, slots=True)
class BufferSharing:
    """What every value of a graph is called when buffers are shared, and the bytes that takes.

    Residents keep their names and are not counted; a view has a name of its own and no bytes.
    """

    names: list[str]  # per value
    buffers: dict[str, int]  # name -> bytes of its largest content
    intervals: list[LiveRange]  # of the values that have bytes of their own, in the order they are written
    separate_bytes: int  # if every value had a buffer of its own
    bound_bytes: int  # most bytes live at once: no sharing is below
    peak_node: int  # where they are; -1 for a graph without nodes

    @property
    def bytes(self) -> int:
        return sum(self.buffers.values())


def share_buffers(graph: Graph, keep: Collection[str] = (), in_place: bool = True) -> BufferSharing:
    """Names under which the values of `graph`, run in its own order, need the least bytes found.

    An op writes over an input that it reads last of all where it may, unless `in_place` is false; what is
    declared in place always does. Results and values named by `keep` live to the end and keep their names.
    """
    lives, devices = StorageLifetimes(graph), value_devices(graph)
    intervals = {i.value: i for i in live_ranges_of(graph, lives, keep)}
    held = storages_live_at_end(graph, lives, keep)
    last = {v: interval.last for v, interval in intervals.items() if v not in held}
    chains = _chains(graph, lives, devices, last, in_place)
    columns = np.array(
        [
            (intervals[chain[0]].first, intervals[chain[-1]].last + 1, max(intervals[v].bytes for v in chain))
            for chain in chains
        ],
        np.int64,
    ).reshape(-1, 3)
    number = {device: i for i, device in enumerate(dict.fromkeys(devices))}
    group = np.array([number[devices[chain[0]]] for chain in chains], np.int64)
    found = assign_buffers(columns[:, 0], columns[:, 1], columns[:, 2], group)
    name_of: dict[int, str] = {}
    for chain, b in zip(chains, found.buffer.tolist(), strict=True):
        own = [v for v in chain if v in held]  # one at most in a buffer: it lives to the end
        name_of[b] = graph.values[own[0]].name if own else name_of.get(b, graph.values[chain[0]].name)
    names = [value.name for value in graph.values]
    for chain, b in zip(chains, found.buffer.tolist(), strict=True):
        for v in chain:
            names[v] = name_of[b]
    return BufferSharing(
        names,
        {name_of[b]: size for b, size in enumerate(found.size.tolist())},
        list(intervals.values()),
        sum(i.bytes for i in intervals.values()),
        found.bound_bytes,
        _peak(columns),
    )


def _peak(columns: np.ndarray) -> int:
    """The node at which most bytes of contents (first, last + 1, bytes) are live; -1 without any."""
    change = np.zeros(int(columns[:, 1].max(initial=0)) + 1, np.int64)
    np.add.at(change, columns[:, 0], columns[:, 2])
    np.subtract.at(change, columns[:, 1], columns[:, 2])
    return int(np.argmax(np.cumsum(change))) if len(columns) else -1


def _chains(
    graph: Graph, lives: StorageLifetimes, devices: Sequence[str | None], last: Mapping[int, int], in_place: bool
) -> list[list[int]]:
    """Values that lie in the same bytes one after the other, by the node that writes the first."""
    chain_of: dict[int, list[int]] = {}
    chains: list[list[int]] = []
    for n, node in enumerate(graph.nodes):
        pairs = inplace_candidates(graph, node) if in_place else ()
        free = {lives.storage[v] for v in node.reads if last.get(lives.storage[v]) == n} & chain_of.keys()
        for i, v in lives.made_by(node):
            over = [u for u in lives.inplace_sources(node, i, pairs) if u in free and devices[u] == devices[v]]
            if over:
                free.remove(over[0])
                chain_of[v] = chain_of[over[0]]
            else:
                chain_of[v] = []
                chains.append(chain_of[v])
            chain_of[v].append(v)
    return chains


def sharing_report(graph: Graph, keep: Collection[str] = ()) -> dict[str, Any]:
    """The sharing of a graph as the section of a report: columns with one entry a value, steps inclusive."""
    found = share_buffers(graph, keep)
    return {
        "bytes": found.bytes,
        "separate_bytes": found.separate_bytes,
        "bound_bytes": found.bound_bytes,
        "peak_node": graph.nodes[found.peak_node].name if found.peak_node >= 0 else None,
        "buffers": [{"name": name, "bytes": size} for name, size in found.buffers.items()],
        "buffer": [found.names[i.value] for i in found.intervals],
        **live_range_columns(graph, keep),
    }
