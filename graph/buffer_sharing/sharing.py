"""Buffer sharing: names for values such that values with disjoint lifetimes share a buffer.

data ──fc1──▶ x ──fc2──▶ y ──fc3──▶ z          names      data  x  y  x          z reuses the buffer of x

A name is reused after the last read of its content; an op overwrites an input only where it may
(`inplace_candidates`, `in_place`); an op never writes a name twice; names do not cross devices.
`shared_program.py` checks these rules for any assignment, and writes the program.
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
    """Device of each value: its annotation, else the output device of its writer; None if unknown."""
    devices: list[str | None] = []
    for value, n in zip(graph.values, producers(graph), strict=True):
        own = value.annotations.get(DEVICE)
        if own is None and n >= 0:
            node = graph.nodes[n]
            own = (copy_route(node) or (None, None))[1] or device_of(node)
        devices.append(None if own is None else str(own))
    return devices


@dataclass(frozen=True, eq=False, slots=True)
class BufferSharing:
    """Names of all values under buffer sharing, and the buffers' bytes.

    Residents keep their names and are not counted; a view has its own name and no bytes.
    """

    names: list[str]  # per value
    buffers: dict[str, int]  # name -> bytes of its largest content
    intervals: list[LiveRange]  # of the values with storage of their own, in write order
    separate_bytes: int  # without sharing
    bound_bytes: int  # peak of live bytes: a lower bound of every sharing
    peak_node: int  # node of that peak; -1 for a graph without nodes

    @property
    def bytes(self) -> int:
        return sum(self.buffers.values())


def share_buffers(graph: Graph, keep: Collection[str] = (), in_place: bool = True) -> BufferSharing:
    """The buffer sharing with the fewest bytes found for `graph` in node order.

    An op overwrites an input at its last use where it may, unless `in_place` is false; outputs declared in
    place always do. Results and values named by `keep` are live to the end and keep their names.
    """
    lifetimes, devices = StorageLifetimes(graph), value_devices(graph)
    intervals = {i.value: i for i in live_ranges_of(graph, lifetimes, keep)}
    held = storages_live_at_end(graph, lifetimes, keep)
    last = {v: interval.last for v, interval in intervals.items() if v not in held}
    chains = _chains(graph, lifetimes, devices, last, in_place)
    columns = np.array(
        [
            (intervals[chain[0]].first, intervals[chain[-1]].last + 1, max(intervals[v].bytes for v in chain))
            for chain in chains
        ],
        np.int64,
    ).reshape(-1, 3)
    number = {device: i for i, device in enumerate(dict.fromkeys(devices))}
    group = np.array([number[devices[chain[0]]] for chain in chains], np.int64)
    assignment = assign_buffers(columns[:, 0], columns[:, 1], columns[:, 2], group)
    names = [value.name for value in graph.values]
    name_of: dict[int, str] = {}
    for chain, b in zip(chains, assignment.buffer.tolist(), strict=True):
        own = [v for v in chain if v in held]  # at most one per buffer, since it is live to the end
        name_of[b] = names[own[0]] if own else name_of.get(b, names[chain[0]])
    shared = {v: name_of[b] for chain, b in zip(chains, assignment.buffer.tolist(), strict=True) for v in chain}
    names = [shared.get(v, name) for v, name in enumerate(names)]
    return BufferSharing(
        names,
        {name_of[b]: size for b, size in enumerate(assignment.size.tolist())},
        list(intervals.values()),
        sum(i.bytes for i in intervals.values()),
        assignment.bound_bytes,
        _peak(columns),
    )


def _peak(columns: np.ndarray) -> int:
    """The node with the most live bytes; columns are (first, last + 1, bytes). -1 if there are none."""
    change = np.zeros(int(columns[:, 1].max(initial=0)) + 1, np.int64)
    np.add.at(change, columns[:, 0], columns[:, 2])
    np.subtract.at(change, columns[:, 1], columns[:, 2])
    return int(np.argmax(np.cumsum(change))) if len(columns) else -1


def _chains(
    graph: Graph, lifetimes: StorageLifetimes, devices: Sequence[str | None], last: Mapping[int, int], in_place: bool
) -> list[list[int]]:
    """Chains of values that overwrite each other in place, in order of the first value's writer."""
    chain_of: dict[int, list[int]] = {}
    chains: list[list[int]] = []
    for n, node in enumerate(graph.nodes):
        pairs = inplace_candidates(graph, node) if in_place else ()
        free = {lifetimes.storage[v] for v in node.reads if last.get(lifetimes.storage[v]) == n} & chain_of.keys()
        for i, v in lifetimes.made_by(node):
            over = [u for u in lifetimes.inplace_sources(node, i, pairs) if u in free and devices[u] == devices[v]]
            if over:
                free.remove(over[0])
                chain_of[v] = chain_of[over[0]]
            else:
                chain_of[v] = []
                chains.append(chain_of[v])
            chain_of[v].append(v)
    return chains


def sharing_report(graph: Graph, keep: Collection[str] = ()) -> dict[str, Any]:
    """The buffer sharing as a report section: columns with one entry per value, steps inclusive."""
    sharing = share_buffers(graph, keep)
    return {
        "bytes": sharing.bytes,
        "separate_bytes": sharing.separate_bytes,
        "bound_bytes": sharing.bound_bytes,
        "peak_node": graph.nodes[sharing.peak_node].name if sharing.peak_node >= 0 else None,
        "buffers": [{"name": name, "bytes": size} for name, size in sharing.buffers.items()],
        "buffer": [sharing.names[i.value] for i in sharing.intervals],
        **live_range_columns(graph, keep),
    }
