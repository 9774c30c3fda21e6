"""Where a run keeps its arrays, and the bytes it counts: by storage, or by address in an arena.

A step's bytes are what is retained, its inputs, all its outputs and its workspace, less what an output
takes over. Both memories find the last use of every storage from the graph they run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from graph.analysis.aliasing import inplace_candidates, is_view, storage_roots, views_of
from graph.analysis.cost import workspace_of
from graph.errors import ArenaFault, CannotExecute
from graph.execution.arena import Arena, ArenaBytes
from graph.ir import ABSENT, Graph, Node, Role, TensorType
from graph.ops.registry.registry import find_op


class RunMemory(Protocol):
    """What a run asks of either."""

    actual: dict[int, TensorType]  # what values hold that have fewer rows than declared

    def start(self, fed: Mapping[int, np.ndarray]) -> None: ...

    def has_array(self, v: int) -> bool: ...

    def read(self, v: int) -> np.ndarray: ...

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int: ...


class StorageLifetimes:
    """Per storage its last use. A storage is named by its root value, one overwritten in place by the first of all."""

    def __init__(self, graph: Graph, uncounted: Collection[int] = ()):
        self.graph, self.uncounted = graph, uncounted  # storages whose bytes are counted elsewhere
        roots = storage_roots(graph)
        onto: dict[int, int] = {}  # root written into a resident storage -> that storage's root
        for node in graph.nodes:
            for output, source in node.in_place:
                new, old = roots[node.outputs[output]], roots[node.inputs[source]]
                base = onto.get(old, old)
                if graph.values[base].role is not Role.ACTIVATION:
                    onto[new] = base
        self.storage = [onto.get(root, root) for root in roots]
        self.persistent = {self.storage[v] for v in graph.outputs}
        self.persistent |= {
            self.storage[v] for v, value in enumerate(graph.values) if value.role is not Role.ACTIVATION
        }
        last: dict[int, int] = {}
        for n, node in enumerate(graph.nodes):
            for v in (*content_reads(graph, node), *node.writes):
                last[self.storage[v]] = n
        self.last_used_at: dict[int, list[int]] = {}  # node -> storages used there for the last time
        for storage, n in last.items():
            if storage not in self.persistent:
                self.last_used_at.setdefault(n, []).append(storage)
        self.used = set(last) | self.persistent
        self.names: dict[int, list[int]] = {}  # storage -> values that show it
        for v, storage in enumerate(self.storage):
            self.names.setdefault(storage, []).append(v)

    def made_by(self, node: Node) -> list[tuple[int, int]]:
        """(position, value) of the outputs that get a storage of their own."""
        return [(i, v) for i, v in enumerate(node.outputs) if v != ABSENT and self.storage[v] == v]

    def inplace_sources(self, node: Node, output: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Storages an output may lie over, in order of preference."""
        return [self.storage[node.inputs[i]] for o, i in (*node.in_place, *pairs) if o == output]

    def bytes_of(self, storage: int) -> int:
        return 0 if storage in self.uncounted else self.graph.values[storage].nbytes


def content_reads(graph: Graph, node: Node) -> list[int]:
    """Values whose bytes a node reads: not those of which it reads the shape, and of a view only what it shows."""
    if is_view(graph, node):
        return [node.inputs[source] for _, source in views_of(graph, node)]
    record = find_op(node.op)
    if node.bodies or record is None or not record.shape_only:
        return list(node.reads)
    return [v for i, v in enumerate(node.inputs) if v != ABSENT and i not in record.shape_only]


class PlainMemory:
    """Arrays by value; a storage's bytes are counted from the node that writes it to its last use."""

    def __init__(self, graph: Graph, takes_over: bool, lives: StorageLifetimes | None = None):
        self.graph, self.takes_over, self.lives = graph, takes_over, lives or StorageLifetimes(graph)
        self.actual: dict[int, TensorType] = {}
        self.arrays: dict[int, np.ndarray] = {}
        self.live_bytes = 0

    def start(self, fed: Mapping[int, np.ndarray]) -> None:
        for v, array in fed.items():
            if self.lives.storage[v] in self.lives.used:
                self.arrays[v] = _read_only(array)
                self.live_bytes += self.lives.bytes_of(v)

    def has_array(self, v: int) -> bool:
        return True

    def read(self, v: int) -> np.ndarray:
        return self.arrays[v]

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int:
        node, lives = self.graph.nodes[n], self.lives
        for v, array in zip(node.outputs, results, strict=True):
            if v != ABSENT and array is not None:
                self.arrays[v] = array
        self.live_bytes += sum(lives.bytes_of(v) for _, v in lives.made_by(node))
        step_bytes = self.live_bytes + workspace_of(self.graph, node) - self._taken(n, node)
        for storage in lives.last_used_at.get(n, ()):
            self.live_bytes -= lives.bytes_of(storage)
            for v in lives.names[storage]:
                self.arrays.pop(v, None)
        return step_bytes

    def _taken(self, n: int, node: Node) -> int:
        """Bytes of outputs that lie over an input that ends here, each input taken once."""
        pairs = inplace_candidates(self.graph, node) if self.takes_over else ()
        if not pairs and not node.in_place:
            return 0
        lives, taken = self.lives, 0
        free = set(lives.last_used_at.get(n, ())) - {v for _, v in lives.made_by(node)}
        for i, v in lives.made_by(node):
            for source in lives.inplace_sources(node, i, pairs):
                if source in free and lives.bytes_of(source) >= lives.bytes_of(v):
                    free.remove(source)
                    taken += lives.bytes_of(v)
                    break
        return taken


class ArenaMemory:
    """Bytes at planned addresses; a step's bytes are the addresses in use."""

    def __init__(self, graph: Graph, arena: Arena):
        self.graph, self.arena, self.lives = graph, arena, StorageLifetimes(graph)
        self.actual: dict[int, TensorType] = {}
        self.bytes = ArenaBytes(arena.size_bytes)
        self.live_bytes = 0
        self.by_kernel: set[int] = set()  # views whose element order is not their storage's
        for node in graph.nodes:
            record = find_op(node.op)
            for output, source in views_of(graph, node):
                made, shown = node.outputs[output], node.inputs[source]
                if record is None or (output, source) not in record.views or shown in self.by_kernel:
                    self.by_kernel.add(made)

    def start(self, fed: Mapping[int, np.ndarray]) -> None:
        for v, array in fed.items():
            if self.lives.storage[v] in self.lives.used:
                self._claim(v)
                self._store(v, array)

    def has_array(self, v: int) -> bool:
        return v not in self.by_kernel

    def read(self, v: int) -> np.ndarray:
        storage, value = self.lives.storage[v], self.graph.values[v]
        if value.type is None:
            raise CannotExecute(f"value {value.name} is only a size; give it a dtype and a shape")
        if not self.bytes.live(storage):
            raise ArenaFault(f"{value.name} is read after its bytes were freed")
        if self._offset(v) != self._offset(storage):
            raise ArenaFault(
                f"{value.name} is a view at {self._offset(v)}, its storage lies at {self._offset(storage)}"
            )
        return _read_only(self.bytes.load(self._offset(v), self.actual.get(v, value.type)))

    def write(self, n: int, results: Sequence[np.ndarray | None]) -> int:
        node, lives = self.graph.nodes[n], self.lives
        ending = lives.last_used_at.get(n, ())
        made = lives.made_by(node)
        own = {v for _, v in made}
        pairs = inplace_candidates(self.graph, node)
        shared = self._workspace(n, node)
        for i, v in made:
            allowed = set(lives.inplace_sources(node, i, pairs)) & set(ending)
            shared += self._check_free(node, v, allowed)
        step_bytes = self.live_bytes + sum(lives.bytes_of(v) for v in own) + shared
        for storage in ending:
            if storage not in own:
                self.live_bytes -= lives.bytes_of(storage)
                self.bytes.release(storage)
        for _, v in made:
            self._claim(v)
        for v, array in zip(node.outputs, results, strict=True):
            if v != ABSENT and array is not None and (v in own or self._is_overwritten(node, v)):
                self._store(v, array)
        for storage in ending:
            if storage in own:
                self.live_bytes -= lives.bytes_of(storage)
                self.bytes.release(storage)
        return step_bytes

    def _is_overwritten(self, node: Node, v: int) -> bool:
        """The output lies in a resident storage, whose content it replaces."""
        return any(node.outputs[output] == v for output, _ in node.in_place)

    def _check_free(self, node: Node, v: int, allowed: set[int]) -> int:
        """Minus the bytes an output shares with the input it takes over, whose address it has. Raises ArenaFault."""
        size, name = self.lives.bytes_of(v), self.graph.values[v].name
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
        """Bytes of the node's workspace, which lies apart from all that is live and from its outputs."""
        size = workspace_of(self.graph, node)
        if size == 0:
            return 0
        begin = self.arena.workspace_offsets.get(n, -1)
        what = f"the workspace of node {node.name}"
        self.bytes.claim(-1, begin, size, what)
        for _, v in self.lives.made_by(node):
            low = self._offset(v)
            if self.lives.bytes_of(v) and low < begin + size and begin < low + self.lives.bytes_of(v):
                raise ArenaFault(f"{what} overlaps its output {self.graph.values[v].name}")
        self.bytes.release(-1)
        return size

    def _claim(self, v: int) -> None:
        """Make a storage's bytes live."""
        self.bytes.claim(v, self._offset(v), self.lives.bytes_of(v), self.graph.values[v].name)
        self.live_bytes += self.lives.bytes_of(v)

    def _store(self, v: int, array: np.ndarray) -> None:
        value, storage = self.graph.values[v], self.lives.storage[v]
        if value.type is None:
            raise CannotExecute(f"value {value.name} is only a size; give it a dtype and a shape")
        if value.type.nbytes > self.lives.bytes_of(storage):
            raise CannotExecute(
                f"{value.name} is {value.type}, more than the {self.lives.bytes_of(storage)} bytes it has"
            )
        type = self.actual.get(v, value.type)
        if type.nbytes:
            self.bytes.store(self._offset(v), array, type)

    def _offset(self, v: int) -> int:
        """Where the storage of a value lies."""
        return self.arena.value_offsets[self.lives.storage[v]]


def _read_only(array: np.ndarray) -> np.ndarray:
    seen = np.asarray(array, order="C").view()
    seen.flags.writeable = False
    return seen
