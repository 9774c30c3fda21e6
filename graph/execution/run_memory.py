"""Memory of a run and its byte accounting: by storage, or by address in an arena.

Bytes of a step: retained storages, inputs, all outputs and workspace, less bytes of outputs written over
an input. Both memories derive the lifetime of every storage from the graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from graph.analysis.aliasing import inplace_candidates, is_view, last_uses, storage_roots, views_of
from graph.analysis.cost import workspace_of
from graph.errors import ArenaFault, CannotExecute
from graph.execution.arena import Arena, ArenaBytes
from graph.ir import ABSENT, Graph, Node, Role, TensorType
from graph.ops.registry.registry import find_op


class RunMemory(Protocol):
    """Interface of the memories: `begin` precedes a node, `write` follows it and returns the bytes of the step."""

    actual: dict[int, TensorType]  # types of values with fewer rows than declared, and of lengths computed from them

    def start(self, fed: Mapping[int, np.ndarray]) -> None: ...

    def begin(self, n: int) -> None: ...

    def has_array(self, v: int) -> bool: ...

    def read(self, v: int) -> np.ndarray: ...

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int: ...


class StorageLifetimes:
    """Last use of every storage. The id of a storage is its root value; of updates in place, the first root."""

    def __init__(self, graph: Graph, uncounted: Collection[int] = ()):
        self.graph, self.uncounted = graph, uncounted  # storages counted as 0 bytes
        roots = storage_roots(graph)
        resident: dict[int, int] = {}  # root written in place into a resident storage -> that storage's root
        for node in graph.nodes:
            for output, source in node.in_place:
                new, old = roots[node.outputs[output]], roots[node.inputs[source]]
                base = resident.get(old, old)
                if graph.values[base].role is not Role.ACTIVATION:
                    resident[new] = base
        self.storage = [resident.get(root, root) for root in roots]
        self.persistent = {self.storage[v] for v in graph.outputs}
        self.persistent |= {
            self.storage[v] for v, value in enumerate(graph.values) if value.role is not Role.ACTIVATION
        }
        last = last_uses(self.storage, ((*content_reads(graph, node), *node.writes) for node in graph.nodes))
        self.last_used_at: dict[int, list[int]] = {}  # node -> storages whose last use it is
        for storage, n in last.items():
            if storage not in self.persistent:
                self.last_used_at.setdefault(n, []).append(storage)
        self.used = set(last) | self.persistent
        self.names: dict[int, list[int]] = {}  # storage -> values in it: root and views
        for v, storage in enumerate(self.storage):
            self.names.setdefault(storage, []).append(v)

    def made_by(self, node: Node) -> list[tuple[int, int]]:
        """(position, value) of the outputs that have a storage of their own."""
        return [(i, v) for i, v in enumerate(node.outputs) if v != ABSENT and self.storage[v] == v]

    def inplace_sources(self, node: Node, output: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Storages an output may overwrite, in order of preference."""
        return [self.storage[node.inputs[i]] for o, i in (*node.in_place, *pairs) if o == output]

    def bytes_of(self, storage: int) -> int:
        return 0 if storage in self.uncounted else self.graph.values[storage].nbytes


def content_reads(graph: Graph, node: Node) -> list[int]:
    """Values whose bytes a node reads: inputs read by shape only are excluded, a view reads only its storage."""
    if is_view(graph, node):
        return [node.inputs[source] for _, source in views_of(graph, node)]
    record = find_op(node.op)
    if node.bodies or record is None or not record.shape_only:
        return list(node.reads)
    return [v for i, v in enumerate(node.inputs) if v != ABSENT and i not in record.shape_only]


def views_by_kernel(graph: Graph) -> set[int]:
    """Views in another element order than their storage."""
    found: set[int] = set()
    for node in graph.nodes:
        record = find_op(node.op)
        for output, source in views_of(graph, node):
            view, viewed = node.outputs[output], node.inputs[source]
            if record is None or (output, source) not in record.views or viewed in found:
                found.add(view)
    return found


class PlainMemory:
    """Arrays by value; bytes of a storage are counted from its writer to its last use."""

    def __init__(self, graph: Graph, takes_over: bool, lifetimes: StorageLifetimes | None = None):
        self.graph, self.takes_over, self.lifetimes = graph, takes_over, lifetimes or StorageLifetimes(graph)
        self.actual: dict[int, TensorType] = {}
        self.arrays: dict[int, np.ndarray] = {}
        self.live_bytes = 0

    def start(self, fed: Mapping[int, np.ndarray]) -> None:
        for v, array in fed.items():
            if self.lifetimes.storage[v] in self.lifetimes.used:
                self.arrays[v] = _read_only(array)
                self.live_bytes += self.lifetimes.bytes_of(v)

    def begin(self, n: int) -> None:
        """Nothing: bytes are freed when the last node that uses them has run."""

    def has_array(self, v: int) -> bool:
        return True

    def read(self, v: int) -> np.ndarray:
        return self.arrays[v]

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int:
        node, lifetimes = self.graph.nodes[n], self.lifetimes
        for v, array in zip(node.outputs, results, strict=True):
            if v != ABSENT and array is not None:
                self.arrays[v] = array
        self.live_bytes += sum(lifetimes.bytes_of(v) for _, v in lifetimes.made_by(node))
        step_bytes = self.live_bytes + workspace_of(self.graph, node) - self._shared_bytes(n, node)
        for storage in lifetimes.last_used_at.get(n, ()):
            self.live_bytes -= lifetimes.bytes_of(storage)
            for v in lifetimes.names[storage]:
                self.arrays.pop(v, None)
        return step_bytes

    def _shared_bytes(self, n: int, node: Node) -> int:
        """Bytes of outputs written over an input at its last use, each input used once."""
        pairs = inplace_candidates(self.graph, node, self.takes_over)
        if not pairs and not node.in_place:
            return 0
        lifetimes, shared = self.lifetimes, 0
        free = set(lifetimes.last_used_at.get(n, ())) - {v for _, v in lifetimes.made_by(node)}
        for i, v in lifetimes.made_by(node):
            for source in lifetimes.inplace_sources(node, i, pairs):
                if source in free and lifetimes.bytes_of(source) >= lifetimes.bytes_of(v):
                    free.remove(source)
                    shared += lifetimes.bytes_of(v)
                    break
        return shared


class AddressedMemory(ABC):
    """Values at planned addresses. Subclasses say in which arena a storage lies, and when its bytes are in use."""

    def __init__(self, graph: Graph, value_offsets: Sequence[int]):
        self.graph, self.value_offsets, self.lifetimes = graph, value_offsets, StorageLifetimes(graph)
        self.actual: dict[int, TensorType] = {}
        self.live_bytes = 0
        self.by_kernel = views_by_kernel(graph)

    def start(self, fed: Mapping[int, np.ndarray]) -> None:
        for v, array in fed.items():
            if self.lifetimes.storage[v] in self.lifetimes.used:
                self._claim(v)
                self._store(v, array)

    def has_array(self, v: int) -> bool:
        return v not in self.by_kernel

    def read(self, v: int) -> np.ndarray:
        storage, value = self.lifetimes.storage[v], self.graph.values[v]
        if value.type is None:
            raise CannotExecute(f"value {value.name} has only a size; declare its dtype and shape")
        if not self._space(storage).live(storage):
            raise ArenaFault(f"{value.name} is read after its bytes were freed")
        if self._offset(v) != self._offset(storage):
            raise ArenaFault(
                f"{value.name} is a view at {self._offset(v)}, but its storage is at {self._offset(storage)}"
            )
        return _read_only(self._space(storage).load(self._offset(v), self.actual.get(v, value.type)))

    @abstractmethod
    def _space(self, storage: int) -> ArenaBytes:
        """The bytes of the arena in which a storage lies."""

    @abstractmethod
    def _claim(self, v: int) -> None:
        """Make a storage's bytes live."""

    def _store(self, v: int, array: np.ndarray) -> None:
        value, storage = self.graph.values[v], self.lifetimes.storage[v]
        if value.type is None:
            raise CannotExecute(f"value {value.name} has only a size; declare its dtype and shape")
        if value.type.nbytes > self.lifetimes.bytes_of(storage):
            raise CannotExecute(
                f"{value.name} is {value.type}, larger than its storage of {self.lifetimes.bytes_of(storage):,} bytes"
            )
        type = self.actual.get(v, value.type)
        if type.nbytes:
            self._space(storage).store(self._offset(v), array, type)

    def _offset(self, v: int) -> int:
        """Offset of the storage of a value."""
        return self.value_offsets[self.lifetimes.storage[v]]


class ArenaMemory(AddressedMemory):
    """Values at planned addresses; bytes of a step are the addresses in use."""

    def __init__(self, graph: Graph, arena: Arena):
        super().__init__(graph, arena.value_offsets)
        self.arena, self.bytes = arena, ArenaBytes(arena.size_bytes)

    def begin(self, n: int) -> None:
        """Nothing: bytes are freed when the last node that uses them has run."""

    def _space(self, storage: int) -> ArenaBytes:
        return self.bytes

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int:
        node, lifetimes = self.graph.nodes[n], self.lifetimes
        ending = lifetimes.last_used_at.get(n, ())
        outputs = lifetimes.made_by(node)
        own = {v for _, v in outputs}
        pairs = inplace_candidates(self.graph, node)
        shared = self._workspace(n, node)
        for i, v in outputs:
            allowed = set(lifetimes.inplace_sources(node, i, pairs)) & set(ending)
            shared += self._check_free(node, v, allowed)
        step_bytes = self.live_bytes + sum(lifetimes.bytes_of(v) for v in own) + shared
        for storage in ending:
            if storage not in own:
                self.live_bytes -= lifetimes.bytes_of(storage)
                self.bytes.release(storage)
        for _, v in outputs:
            self._claim(v)
        for v, array in zip(node.outputs, results, strict=True):
            if v != ABSENT and array is not None and (v in own or self._is_overwritten(node, v)):
                self._store(v, array)
        for storage in ending:
            if storage in own:
                self.live_bytes -= lifetimes.bytes_of(storage)
                self.bytes.release(storage)
        return step_bytes

    def _is_overwritten(self, node: Node, v: int) -> bool:
        """True if the output replaces the content of a resident storage."""
        return any(node.outputs[output] == v for output, _ in node.in_place)

    def _check_free(self, node: Node, v: int, allowed: set[int]) -> int:
        """Minus the bytes an output shares with the inputs it overwrites at the same address. Raises ArenaFault."""
        size, name = self.lifetimes.bytes_of(v), self.graph.values[v].name
        if size == 0:
            return 0
        begin, shared = self._offset(v), 0
        for owner, common in self.bytes.overlapping(begin, begin + size):
            if owner not in allowed or self._offset(owner) != begin:
                raise ArenaFault(
                    f"node {node.name} writes {name} to [{begin}, {begin + size}), over {common} live bytes of "
                    f"{self.graph.values[owner].name}"
                )
            shared -= common
        return shared

    def _workspace(self, n: int, node: Node) -> int:
        """Bytes of the node's workspace. Raises ArenaFault if it overlaps live bytes or an output."""
        size = workspace_of(self.graph, node)
        if size == 0:
            return 0
        begin = self.arena.workspace_offsets.get(n, -1)
        name = f"the workspace of node {node.name}"
        self.bytes.claim(-1, begin, size, name)
        for _, v in self.lifetimes.made_by(node):
            low = self._offset(v)
            if self.lifetimes.bytes_of(v) and low < begin + size and begin < low + self.lifetimes.bytes_of(v):
                raise ArenaFault(f"{name} overlaps its output {self.graph.values[v].name}")
        self.bytes.release(-1)
        return size

    def _claim(self, v: int) -> None:
        """Make a storage's bytes live."""
        self.bytes.claim(v, self._offset(v), self.lifetimes.bytes_of(v), self.graph.values[v].name)
        self.live_bytes += self.lifetimes.bytes_of(v)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = np.asarray(array, order="C").view()
    view.flags.writeable = False
    return view
