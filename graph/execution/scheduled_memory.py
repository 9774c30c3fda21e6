"""Memory of a run whose copies to the host and back overlap other nodes: one arena on the device, one on the host.

Nodes run in the order in which they start. A copy takes effect as late as its schedule allows: until it has ended, its
source holds its bytes and its target holds poison. Addresses are freed when the schedule says so, which is never before
the last node that uses them. A source that is overwritten under a running copy, or a value that is read before its copy
has ended, therefore changes the result or raises ArenaFault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graph.errors import ArenaFault
from graph.execution.arena import Arena, ArenaBytes
from graph.execution.run_memory import AddressedMemory
from graph.ir import ABSENT, FETCH, OFFLOAD, Graph


@dataclass(frozen=True, eq=False, slots=True)
class ScheduledArena:
    """Planned addresses in two spaces, and what happens before each node of the graph starts."""

    device: Arena
    host_bytes: int
    on_host: frozenset[int]  # values
    taken_from: Mapping[int, int]  # value -> value whose storage it reuses
    ended: Mapping[int, Sequence[int]]  # node -> copy nodes that end before it starts
    released: Mapping[int, Sequence[int]]  # node -> values whose storage is freed before it starts
    workspace_bytes: Mapping[int, int]  # node -> bytes of its workspace
    workspace_ended: Mapping[int, Sequence[int]]  # node -> nodes whose workspace is freed before it starts


class ScheduledMemory(AddressedMemory):
    """Values at planned addresses of two arenas; bytes of a step are the device addresses in use once it starts."""

    def __init__(self, graph: Graph, arena: ScheduledArena):
        super().__init__(graph, arena.device.value_offsets)
        self.arena = arena
        self.device, self.host = ArenaBytes(arena.device.size_bytes), ArenaBytes(arena.host_bytes)
        self.tails: dict[int, int] = {}  # storage that was taken over -> bytes of it that the taker leaves

    def begin(self, n: int) -> None:
        """End the copies and free the addresses that the schedule ends before node `n` starts."""
        for copy in self.arena.ended.get(n, ()):
            self._end_copy(copy)
        for v in self.arena.released.get(n, ()):
            self._release(v)
        for node in self.arena.workspace_ended.get(n, ()):
            self._free_workspace(node)

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int:
        node = self.graph.nodes[n]
        own = {v for _, v in self.lifetimes.made_by(node)}
        for v in own:
            if v in self.arena.taken_from:
                self._take(v, self.arena.taken_from[v])
            else:
                self._claim(v)
        self._claim_workspace(n)
        in_place = {node.outputs[output] for output, _ in node.in_place}
        for v, array in zip(node.outputs, results, strict=True):
            if v != ABSENT and array is not None and node.op not in (OFFLOAD, FETCH) and (v in own or v in in_place):
                self._store(v, array)
        return self.live_bytes

    def _end_copy(self, n: int) -> None:
        """Move the bytes of a copy."""
        node = self.graph.nodes[n]
        source, target = node.inputs[0], node.outputs[0]
        storage, size = self.lifetimes.storage[source], self.lifetimes.bytes_of(target)
        if not self._space(storage).live(storage):
            raise ArenaFault(f"{self.graph.values[source].name} is freed while {node.name} copies it")
        if source in self.actual:
            self.actual[target] = self.actual[source]
        begin, to = self._offset(source), self._offset(target)
        if size:
            self._space(target).memory[to : to + size] = self._space(storage).memory[begin : begin + size]

    def _space(self, storage: int) -> ArenaBytes:
        return self.host if storage in self.arena.on_host else self.device

    def _claim(self, v: int) -> None:
        size = self.lifetimes.bytes_of(v)
        self._space(v).claim(v, self._offset(v), size, self.graph.values[v].name)
        if v not in self.arena.on_host:
            self.live_bytes += size

    def _take(self, v: int, source: int) -> None:
        """Let `v` lie in the storage of `source`, whose other bytes are held until that is released."""
        size, whole = self.lifetimes.bytes_of(v), self.lifetimes.bytes_of(source)
        begin, name = self._offset(v), self.graph.values[v].name
        if begin != self._offset(source):
            raise ArenaFault(f"{name} takes over {self.graph.values[source].name} and lies at another address")
        self.device.release(source)
        self.device.claim(v, begin, size, name)
        self.device.claim(_tail(source), begin + size, whole - size, name)
        self.tails[source] = whole - size

    def _release(self, v: int) -> None:
        if v in self.tails:
            self.device.release(_tail(v))
            self.live_bytes -= self.tails.pop(v)
            return
        self._space(v).release(v)
        if v not in self.arena.on_host:
            self.live_bytes -= self.lifetimes.bytes_of(v)

    def _claim_workspace(self, n: int) -> None:
        if n in self.arena.device.workspace_offsets:
            size = self.arena.workspace_bytes[n]
            name = f"the workspace of node {self.graph.nodes[n].name}"
            self.device.claim(_workspace(n), self.arena.device.workspace_offsets[n], size, name)
            self.live_bytes += size

    def _free_workspace(self, n: int) -> None:
        self.device.release(_workspace(n))
        self.live_bytes -= self.arena.workspace_bytes[n]


def _tail(v: int) -> int:
    """Owner of the bytes that a taker of the storage of `v` leaves; owners that are values count from 0."""
    return -2 * v - 2


def _workspace(n: int) -> int:
    """Owner of the workspace of node `n`."""
    return -2 * n - 1
