"""Lower a graph to the columns of a `Problem`; `realize.py` is the inverse.

value ──▶ storage (a view shares the storage of its source) ──▶ buffer
node that only makes views ──▶ no task; every other node ──▶ one task, in the document's order

A view is made once if it reads more than its storage, or if a kernel makes it beside other outputs: its node is a task,
and neither this task nor the one that writes the storage is recomputed.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from graph.analysis.aliasing import inplace_candidates, is_view, last_uses, nodes_that_may_view, storage_roots, views_of
from graph.analysis.cost import DeviceProfile, seconds_of, workspace_of
from graph.analysis.effects import effect_of
from graph.cancellation import cancellable
from graph.formats.onnx.runtime_workspace import runtime_workspace
from graph.ir import ABSENT, Effect, Graph, Node, Phase, Role, producers
from graph.ir.id_columns import id_columns
from graph.loop_remat import BodyPair, SavePolicy, with_save_policies
from graph.ops.registry import HEAVY, NEVER, find_op
from planner import problem as columns
from planner.problem import Csr, Problem
from planner.problem.alternatives import resolve_choices
from planner.problem.columns import frozen
from planner.problem.copies import CopyProblem
from planner.request.target_runtime import Runtime

#: Categories of the peak; workspace and reserve are counted separately.
PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS = range(4)
CATEGORIES = ("parameters", "gradients", "optimizer", "activations")

# A tick is a power of two in seconds, so small that rounding is below 1e-12 of the total.
TICKS_IN_TOTAL = 2**44
MIN_TOTAL_SECONDS = 1e-290  # seconds of all tasks; keeps the tick a normal float

#: `Node.recompute` as `Problem.recompute`.
PREFERENCES = {None: columns.ALLOW, "allow": columns.ALLOW, "never": columns.FORBID, "prefer": columns.PREFER}


@dataclass(frozen=True, slots=True)
class BodyAlternatives:
    """Alternatives of one pair of bodies, in the order of `Problem.choices`: which values the pair saves."""

    pair: BodyPair
    savings: tuple[SavePolicy | None, ...]  # the first is None: the graph unchanged


@dataclass(frozen=True, eq=False, slots=True)
class LoweredGraph:
    """A problem, and the maps between its numbers and the graph."""

    problem: Problem
    graph: Graph
    roots: list[int]  # value -> value that owns its storage
    task_node: list[int]  # task -> node
    node_task: list[int]  # node -> task; -1 for a node that only makes views
    value_buffer: list[int]  # value -> buffer with its bytes
    buffer_value: list[int]  # buffer -> first value with that storage; ABSENT if the graph has none
    category: np.ndarray  # int8[m]: PARAMETERS, GRADIENTS, OPTIMIZER or ACTIVATIONS
    groups: tuple[BodyAlternatives, ...] = ()  # of `problem.choices`
    extra: Mapping[int, str] = field(default_factory=dict)  # buffer without a value in the graph -> its name
    known: dict[tuple[int, ...], LoweredGraph] = field(default_factory=dict)  # cache of `under`
    copies: CopyProblem | None = None  # `problem` with copies to the host; None: it has none
    plain: LoweredGraph | None = None  # without copies; None: this one
    copied: Callable[[LoweredGraph], LoweredGraph] | None = None  # adds the same copies to `plain` under choices

    @property
    def source(self) -> Graph:
        """The graph without the nodes of copies."""
        return self.graph if self.plain is None else self.plain.graph

    @property
    def source_tasks(self) -> int:
        """Number of tasks that are not copies."""
        return self.problem.tasks if self.copies is None else self.copies.original.tasks

    def producers(self) -> list[int]:
        """Per value the node that produces it, or -1; a fetch writes a value that another node produces."""
        result = producers(self.source)
        result += [-1] * (len(self.graph.values) - len(result))
        for n in reversed(range(len(self.source.nodes), len(self.graph.nodes))):
            v = self.graph.nodes[n].outputs[0]
            result[v] = n if v >= len(self.source.values) else result[v]
        return result

    @property
    def resident_bytes(self) -> int:
        return int(self.problem.size[self.problem.hold == columns.RESIDENT].sum())

    def name_of_task(self, task: int) -> str:
        return self.graph.nodes[self.task_node[task]].name

    def name_of_buffer(self, buffer: int) -> str:
        v = self.buffer_value[buffer]
        return self.extra[buffer] if v == ABSENT else self.graph.values[v].name

    def under(self, choices: Sequence[int]) -> LoweredGraph:
        """The lowered graph under a vector of choices: same tasks and buffers, no choices left. Cached."""
        if not self.groups or not any(choices):
            return self
        vector = tuple(choices)
        if vector not in self.known:
            self.known[vector] = self._under(vector)
        return self.known[vector]

    def _under(self, choices: tuple[int, ...]) -> LoweredGraph:
        if self.plain is not None and self.copied is not None:
            return self.copied(self.plain.under(choices))
        savings = [group.savings[choice] for group, choice in zip(self.groups, choices, strict=True)]
        chosen = {g.pair: s for g, s in zip(self.groups, savings, strict=True) if s is not None}
        graph = with_save_policies(self.graph, chosen)
        buffer = {name: b for b, name in self.extra.items()}
        buffer.update((value.name, self.value_buffer[v]) for v, value in enumerate(self.graph.values))
        roots = storage_roots(graph)
        values = [buffer[value.name] for value in graph.values]
        first = [ABSENT] * len(self.buffer_value)
        for v in reversed(range(len(values))):
            if roots[v] == v:
                first[values[v]] = v
        return replace(
            self,
            problem=resolve_choices(self.problem, choices),
            graph=graph,
            roots=roots,
            value_buffer=values,
            buffer_value=first,
            groups=(),
            known={},
            extra={b: self.name_of_buffer(b) for b, v in enumerate(first) if v == ABSENT},
        )


def lower(
    graph: Graph,
    device: DeviceProfile,
    runtime: Runtime,
    checkpoints: Collection[int] = (),
    keep: Collection[int] = (),
    recompute: Collection[int] = (),
    repeats_collectives: bool = False,
) -> LoweredGraph:
    """Lower `graph` to the columns for a device and runtime. O(nodes + reads).

    Value ids chosen by the user: `checkpoints` are kept by the planner `segments`, `keep` are never recomputed,
    `recompute` are preferred for recomputation. With `repeats_collectives` one plan is for all ranks, so that a search
    may repeat collectives.
    """
    return _Lowering(graph, device, runtime, set(checkpoints), set(keep), set(recompute), repeats_collectives).lowered()


class _Lowering:
    """State of one `lower` call."""

    def __init__(
        self,
        graph: Graph,
        device: DeviceProfile,
        runtime: Runtime,
        checkpoints: set[int],
        keep: set[int],
        recompute: set[int],
        repeats_collectives: bool,
    ):
        self.graph, self.device, self.runtime = graph, device, runtime
        ops = {node.op for node in graph.nodes}
        self.records = {op: record for op in ops if (record := find_op(op)) is not None}
        self.repeats_collectives = repeats_collectives
        self.checkpoints, self.keep, self.recompute = checkpoints, keep, recompute
        self.may_view = nodes_that_may_view(graph)
        self.roots, self.producer = storage_roots(graph, self.may_view), producers(graph)
        free = self._free_views()
        self.task_node = [n for n in range(len(graph.nodes)) if n not in free]
        self.node_task = [-1] * len(graph.nodes)
        for task, n in enumerate(self.task_node):
            self.node_task[n] = task
        self.nodes = [graph.nodes[n] for n in self.task_node]
        self.effects = [effect_of(graph, node) for node in self.nodes]
        self.made_once = self._made_once()
        writers = (self.producer[self.roots[v]] for v in self.made_once)
        self.unrepeated = {*self.made_once.values(), *(self.node_task[n] for n in writers if n >= 0)}
        self._number_buffers()
        self._list_content_readers()

    def lowered(self) -> LoweredGraph:
        return LoweredGraph(
            self._problem(),
            self.graph,
            self.roots,
            self.task_node,
            self.node_task,
            self.value_buffer,
            self.buffer_value,
            self._categories(),
        )

    def _free_views(self) -> set[int]:
        """Nodes that only make views of one storage and read nothing else that a task makes."""
        free: set[int] = set()
        for n in cancellable(self.may_view):
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

    def _made_once(self) -> dict[int, int]:
        """View -> its task, for the views that tasks make."""
        tasks = (self.node_task[n] for n in self.may_view if self.node_task[n] >= 0)
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

    def _list_content_readers(self) -> None:
        """For each storage in an in-place update: the tasks that read its content."""
        overwritten = {root for pairs in self.in_place.values() for pair in pairs for root in pair}
        self.content_readers: dict[int, list[int]] = {root: [] for root in overwritten}
        if overwritten:
            for task, node in enumerate(self.nodes):
                for root in {self.roots[v] for v in node.reads} & overwritten:
                    self.content_readers[root].append(task)

    def _reads(self) -> tuple[Csr, Csr]:
        """For each task: the buffers whose bytes it reads, and the buffers whose shape only it reads."""
        partial = {op for op, record in self.records.items() if record.shape_only or record.views}
        nodes = enumerate(self.nodes)
        special = [task for task, node in nodes if node.views or node.bodies or node.op in partial]
        rows = [node.inputs for node in self.nodes]
        for task in special:
            rows[task] = ()
        reads = self._buffers_of(rows)
        found = [self._reads_of(self.nodes[task]) for task in cancellable(special)]
        if not found:
            return reads, Csr.empty(len(rows))
        full, shapes = (Csr.of(part).entries(np.arange(len(found))) for part in zip(*found, strict=True))
        tasks = np.array(special, np.int64)
        row = np.concatenate([reads.row_of_entry(), tasks[full[0]]])
        return (
            Csr.of_pairs(len(rows), row, np.concatenate([reads.index, full[1]])),
            Csr.of_pairs(len(rows), tasks[shapes[0]], shapes[1]),
        )

    def _buffers_of(self, rows: Sequence[Sequence[int]], are_roots: bool = False) -> Csr:
        """The buffers of rows of values, each once; with `are_roots` of the values that own their storage."""
        row, value = id_columns(rows)
        if are_roots:
            owns = np.array(self.roots, np.int64)[value] == value
            row, value = row[owns], value[owns]
        buffer = np.array(self.value_buffer, np.int64)[value]
        _, first = np.unique(row * len(self.buffer_value) + buffer, return_index=True)
        first.sort()
        return Csr.of_pairs(len(rows), row[first], buffer[first])

    def _reads_of(self, node: Node) -> tuple[list[int], list[int]]:
        """(buffers whose bytes a node reads, buffers whose shape only it reads)."""
        record, buffer = self.records.get(node.op), self.value_buffer
        only: Collection[int] = () if record is None or node.bodies else record.shape_only
        if (node.views or (record is not None and record.views)) and is_view(self.graph, node):
            sources = {source for _, source in views_of(self.graph, node)}
            only = [i for i in range(len(node.inputs)) if i not in sources]
        if not only:
            return _unique([buffer[v] for v in (node.reads if node.bodies else node.inputs) if v != ABSENT]), []
        full = dict.fromkeys(buffer[v] for i, v in enumerate(node.inputs) if v != ABSENT and i not in only)
        shapes = dict.fromkeys(buffer[v] for i, v in enumerate(node.inputs) if v != ABSENT and i in only)
        return list(full), [b for b in shapes if b not in full]

    def _writes_of(self, node: Node) -> set[int]:
        """The buffers that a node writes. An output that is a view of an input writes nothing."""
        return {self.value_buffer[v] for v in node.writes if self.roots[v] == v}

    def _problem(self) -> Problem:
        """Assemble all columns."""
        nodes, graph = self.nodes, self.graph
        reads, shape_reads = self._reads()
        after_every, after_first = self._precedence()
        cost, tick = self._ticks()
        count, rounding = len(nodes), self.runtime.rounding_bytes
        size = np.array([graph.values[v].nbytes for v in self.buffer_value], np.int64)
        marked = np.zeros(len(size), bool)
        marked[[self.value_buffer[v] for v in self.checkpoints]] = True
        return Problem(
            cost=cost,
            workspace=_rounded(self._workspaces(), rounding),
            phase=np.fromiter([node.phase for node in nodes], np.int8, count),
            engine=self._engines(),
            repeat=self._repeats(),
            optional=np.zeros(count, bool),
            heavy=self._heavy(),
            recompute=self._preferences(),
            size=_rounded(size, rounding),
            space=np.zeros(len(size), np.int8),
            hold=self._holds(),
            checkpoint=marked,
            reads=reads,
            shape_reads=shape_reads,
            writes=self._buffers_of([node.outputs for node in nodes], are_roots=True),
            takeover=self._takeovers(),
            after_every=after_every,
            after_first=after_first,
            tick=tick,
        )

    def _engines(self) -> np.ndarray:
        """int8[n]: the engine of each task."""
        collective = Effect.COLLECTIVE
        communicates = np.array([effect is collective for effect in self.effects], bool)
        return np.where(communicates, columns.COMMUNICATION, columns.COMPUTE).astype(np.int8)

    def _workspaces(self) -> np.ndarray:
        """int64[n]: bytes allocated only during one run of each task, by a runtime's kernels where those are known."""
        nodes, graph, roots = self.nodes, self.graph, self.roots
        known = np.array([workspace_of(graph, node) for node in cancellable(nodes)], np.int64)
        if not self.runtime.decomposes:
            return known
        last = last_uses(roots, (node.reads for node in nodes))
        kept = {roots[v] for v in graph.outputs}
        for task, node in enumerate(cancellable(nodes)):
            if node.cost.workspace_bytes is None:
                inner = [v for v in node.reads if graph.values[roots[v]].role is Role.ACTIVATION]
                dying = {v for v in inner if last[roots[v]] == task and roots[v] not in kept}
                known[task] = max(known[task], runtime_workspace(graph, node, dying))
        return known

    def _ticks(self) -> tuple[np.ndarray, float]:
        """(int64[n] ticks of each task, seconds of one tick)."""
        nodes = cancellable(self.nodes)
        seconds = np.array([seconds_of(self.graph, node, self.device) for node in nodes], np.float64)
        if self.runtime.kernel_seconds:
            seconds = seconds + self.runtime.kernel_seconds
        total = float(seconds.sum())
        tick = 2.0 ** math.ceil(math.log2(max(total, MIN_TOTAL_SECONDS) / TICKS_IN_TOTAL)) if total > 0 else 1.0
        return np.rint(seconds / tick).astype(np.int64), tick

    def _holds(self) -> np.ndarray:
        """int8[m]: how long each buffer is held (`Problem.hold`)."""
        hold = np.full(len(self.buffer_value), columns.TO_LAST_READ, np.int8)
        for v in self.graph.outputs:
            producer = self.producer[self.roots[v]]
            forward = producer >= 0 and self.graph.nodes[producer].phase == Phase.FORWARD
            hold[self.value_buffer[v]] = (
                columns.HANDED_OUT if self.runtime.returns_forward_outputs and forward else columns.TO_THE_END
            )
        activation = Role.ACTIVATION  # every other role is resident
        hold[[self.graph.values[v].role is not activation for v in self.buffer_value]] = columns.RESIDENT
        return hold

    def _takeovers(self) -> Csr:
        """For each buffer, the buffers whose storage it may take: required in-place updates, then optional ones.

        Optional are those that nodes declare, and those of the op registry if the target runtime overwrites inputs.
        """
        rows: dict[int, list[int]] = {}
        buffer = self.value_buffer
        for pairs in self.in_place.values():
            for new, old in pairs:
                if buffer[new] != buffer[old]:
                    rows.setdefault(buffer[new], []).append(buffer[old])
        taking = {op for op, record in self.records.items() if record.takeover and self.runtime.takes_over}
        for node in cancellable([node for node in self.nodes if node.takeover or node.op in taking]):
            for output, source in inplace_candidates(self.graph, node, self.runtime.takes_over):
                b, taken = buffer[node.outputs[output]], buffer[node.inputs[source]]
                if b not in self._writes_of(node) or taken not in self._reads_of(node)[0] or taken == b:
                    continue
                if taken not in (row := rows.setdefault(b, [])):
                    row.append(taken)
        return _csr_of(rows, len(self.buffer_value))

    def _precedence(self) -> tuple[Csr, Csr]:
        """Rows of `Problem.after_every` and `Problem.after_first`: in-place updates, `after` edges, side effects."""
        every, first = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for writer, pairs in self.in_place.items():
            for new, old in pairs:
                for reader in self.content_readers[old]:
                    if reader != writer:
                        every[reader].append(writer)
                for reader in self.content_readers[new]:
                    first[writer].append(reader)
        chain: dict[Effect, int] = {}  # effect -> last task with it; such tasks keep their order
        for task, node in enumerate(self.nodes if self.made_once else ()):
            for maker in {self.made_once.get(self._seen_through(v), task) for v in node.reads} - {task}:
                first[maker].append(task)
        for task, (node, effect) in enumerate(zip(self.nodes, self.effects, strict=True)):
            for before in map(self._task_behind, node.after) if node.after else ():
                if before >= 0:
                    first[before].append(task)
            if effect is not Effect.PURE and _is_ordered(effect, node):
                if effect in chain:
                    first[chain[effect]].append(task)
                chain[effect] = task
        return _csr_of(every, len(self.nodes)), _csr_of(first, len(self.nodes))

    def _seen_through(self, v: int) -> int:
        """The value that free views lead to from `v`: a storage, or a view that a task makes."""
        while (n := self.producer[v]) >= 0 and self.node_task[n] < 0:
            node = self.graph.nodes[n]
            v = next(node.inputs[source] for output, source in views_of(self.graph, node) if node.outputs[output] == v)
        return v

    def _task_behind(self, n: int) -> int:
        """Task of node `n`, or of the producer of the storage it views; -1 for a storage that exists at the start."""
        if self.node_task[n] >= 0:
            return self.node_task[n]
        producer = self.producer[self.roots[self.graph.nodes[n].writes[0]]]
        return self.node_task[producer] if producer >= 0 else -1

    def _repeats(self) -> np.ndarray:
        """int8[n]: whether each task may run more than once (`Problem.repeat`)."""
        repeat = np.full(len(self.nodes), columns.FREE, np.int8)
        for task, effect in enumerate(self.effects):
            if effect is not Effect.PURE:
                repeat[task] = self._repeat(effect, self.nodes[task])
        repeat[[*self.in_place, *self.unrepeated]] = columns.NEVER
        return repeat

    def _repeat(self, effect: Effect, node: Node) -> int:
        """Whether a node with an effect may run more than once."""
        if effect is Effect.ONCE or effect is Effect.UNSTABLE:
            return columns.NEVER
        if effect is Effect.RANDOM and node.stream is None:
            return columns.NEVER
        record = self.records.get(node.op)
        if record is not None and record.recompute == NEVER and node.stream is None:
            return columns.NEVER
        is_pinned = effect is Effect.COLLECTIVE and not self.repeats_collectives
        return columns.SAME_ORDER if is_pinned else columns.FREE

    def _preferences(self) -> np.ndarray:
        """int8[n]: the user's preference about recomputation of each task (`Problem.recompute`)."""
        preference = np.fromiter([PREFERENCES[node.recompute] for node in self.nodes], np.int8, len(self.nodes))
        preferred, kept = self._tasks_writing(self.recompute), self._tasks_writing(self.keep)
        preference[[task for task in preferred if preference[task] != columns.FORBID]] = columns.PREFER
        preference[kept] = columns.FORBID
        return preference

    def _tasks_writing(self, values: Collection[int]) -> list[int]:
        """The tasks whose nodes have one of the values as an output."""
        nodes = [self.producer[v] for v in values]
        return [self.node_task[n] for n in nodes if n >= 0 and self.node_task[n] >= 0]

    def _heavy(self) -> np.ndarray:
        """bool[n]: whether mirroring does not recompute each task: declared, or by the op registry."""
        heavy = {op for op, record in self.records.items() if record.recompute in (HEAVY, NEVER)}
        return np.array(
            [node.op in heavy or bool(node.bodies) if node.heavy is None else node.heavy for node in self.nodes], bool
        )

    def _categories(self) -> np.ndarray:
        """int8[m]: category of each buffer in reports."""
        category = np.full(len(self.buffer_value), ACTIVATIONS, np.int8)
        update, activation = Phase.UPDATE, Role.ACTIVATION
        updated = {self.roots[v] for node in self.graph.nodes if node.phase is update for v in node.reads}
        for b, v in enumerate(self.buffer_value):
            role = self.graph.values[v].role
            if role is activation:
                continue
            if role in (Role.PARAMETER, Role.CONSTANT):
                category[b] = PARAMETERS
            elif role is Role.STATE:
                is_optimizer = v in updated or "state_of" in self.graph.values[v].annotations
                category[b] = OPTIMIZER if is_optimizer else PARAMETERS
        for _, gradient in self.graph.gradients:
            category[self.value_buffer[gradient]] = GRADIENTS
        return category


def _is_ordered(effect: Effect, node: Node) -> bool:
    """Whether nodes with this effect keep their order."""
    return effect in (Effect.ONCE, Effect.COLLECTIVE) or (effect is Effect.RANDOM and node.stream is None)


def _csr_of(rows: Mapping[int, Sequence[int]], count: int) -> Csr:
    """`count` rows by number; those that are left out are empty."""
    row = np.repeat(np.fromiter(rows, np.int64, len(rows)), list(map(len, rows.values())))
    return Csr.of_pairs(count, row, np.fromiter(itertools.chain.from_iterable(rows.values()), np.int64, len(row)))


def _unique(row: list[int]) -> list[int]:
    """Entries without duplicates, in order."""
    return row if len(row) < 2 else list(dict.fromkeys(row))


def _rounded(count: np.ndarray, to: int) -> np.ndarray:
    return frozen(np.asarray(-(-count // to) * to))
