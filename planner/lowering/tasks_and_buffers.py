"""The numbers of tasks and buffers: which nodes are tasks, and which values share a buffer.

value ──▶ storage (a view shares the storage of its source) ──▶ buffer
node that only makes views ──▶ no task; every other node ──▶ one task, in the document's order

A view is made once if it reads more than its storage, or if a kernel makes it beside other outputs: its node is a task,
and neither this task nor the one that writes the storage is recomputed.
"""

from __future__ import annotations

from collections.abc import Collection

from graph.analysis.aliasing import is_view, nodes_that_may_view, storage_roots, views_of
from graph.analysis.effects import effect_of
from graph.cancellation import cancellable
from graph.ir import Graph, Role, producers
from graph.ops.registry import find_op


class TasksAndBuffers:
    """The tasks and buffers of a graph.

    `task_node`: task -> node. `node_task`: node -> task, -1 for a node that only makes views. `nodes`, `effects`: by
    task. `records`: op -> its record, for the ops that are known. `roots`: value -> value that owns its storage.
    `producer`: value -> node, or -1. `value_buffer`: value -> buffer. `buffer_value`: buffer -> first value with that
    storage. `made_once`: view -> its task, for the views that tasks make. `unrepeated`: tasks that are not recomputed
    because of these. `in_place`: task -> (new root, old root) of its in-place updates.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        ops = {node.op for node in graph.nodes}
        self.records = {op: record for op in ops if (record := find_op(op)) is not None}
        may_view = nodes_that_may_view(graph)
        self.roots, self.producer = storage_roots(graph, may_view), producers(graph)
        free = self._free_views(may_view)
        self.task_node = [n for n in range(len(graph.nodes)) if n not in free]
        self.node_task = [-1] * len(graph.nodes)
        for task, n in enumerate(self.task_node):
            self.node_task[n] = task
        self.nodes = [graph.nodes[n] for n in self.task_node]
        self.effects = [effect_of(graph, node) for node in self.nodes]
        self.made_once = self._made_once(may_view)
        writers = (self.producer[self.roots[v]] for v in self.made_once)
        self.unrepeated = {*self.made_once.values(), *(self.node_task[n] for n in writers if n >= 0)}
        self._number_buffers()

    def tasks_writing(self, values: Collection[int]) -> list[int]:
        """The tasks whose nodes have one of the values as an output."""
        nodes = [self.producer[v] for v in values]
        return [self.node_task[n] for n in nodes if n >= 0 and self.node_task[n] >= 0]

    def _free_views(self, may_view: Collection[int]) -> set[int]:
        """Nodes that only make views of one storage and read nothing else that a task makes."""
        free: set[int] = set()
        for n in cancellable(may_view):
            node = self.graph.nodes[n]
            if not is_view(self.graph, node):
                continue
            sources = {node.inputs[source] for _, source in views_of(self.graph, node)}
            storages = {self.roots[v] for v in sources}
            others = (v for v in node.reads if v not in sources)
            if (
                len(storages) == 1
                and all(v in storages or self.producer[v] in free for v in sources)
                and all(self.producer[self.roots[v]] < 0 for v in others)
            ):
                free.add(n)
        return free

    def _made_once(self, may_view: Collection[int]) -> dict[int, int]:
        """View -> its task, for the views that tasks make."""
        tasks = (self.node_task[n] for n in may_view if self.node_task[n] >= 0)
        return {
            self.nodes[task].outputs[output]: task
            for task in tasks
            for output, _ in views_of(self.graph, self.nodes[task])
        }

    def _number_buffers(self) -> None:
        """Number the buffers: one for each storage; an in-place update of a resident storage shares its buffer."""
        values, roots = self.graph.values, self.roots
        onto: dict[int, int] = {}  # root written in place -> root whose storage it takes
        self.in_place: dict[int, list[tuple[int, int]]] = {}  # task -> (new root, old root)
        for task, node in enumerate(self.nodes):
            for output, source in node.in_place:
                new, old = roots[node.outputs[output]], roots[node.inputs[source]]
                self.in_place.setdefault(task, []).append((new, old))
                base = onto.get(old, old)
                if values[base].role is not Role.ACTIVATION:
                    onto[new] = base
        self.buffer_value = [v for v in range(len(values)) if roots[v] == v and v not in onto]
        number = {v: b for b, v in enumerate(self.buffer_value)}
        self.value_buffer = [number[onto.get(root, root)] for root in roots]
