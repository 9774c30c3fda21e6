"""The rows of a problem: what tasks read and write, take over and follow."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from graph.analysis.aliasing import inplace_candidates, is_view, views_of
from graph.cancellation import cancellable
from graph.ir import ABSENT, Effect, Node
from graph.ir.id_columns import id_columns
from planner.lowering.tasks_and_buffers import TasksAndBuffers
from planner.problem import Csr


def reads(numbers: TasksAndBuffers) -> tuple[Csr, Csr]:
    """For each task: the buffers whose bytes it reads, and the buffers whose shape only it reads."""
    partial = {op for op, record in numbers.records.items() if record.shape_only or record.views}
    nodes = enumerate(numbers.nodes)
    special = [task for task, node in nodes if node.views or node.bodies or node.op in partial]
    rows = [node.inputs for node in numbers.nodes]
    for task in special:
        rows[task] = ()
    plain = _buffers_of(numbers, rows)
    found = [_reads_of(numbers, numbers.nodes[task]) for task in cancellable(special)]
    if not found:
        return plain, Csr.empty(len(rows))
    full, shapes = (Csr.of(part).entries(np.arange(len(found))) for part in zip(*found, strict=True))
    tasks = np.array(special, np.int64)
    row = np.concatenate([plain.row_of_entry(), tasks[full[0]]])
    return (
        Csr.of_pairs(len(rows), row, np.concatenate([plain.index, full[1]])),
        Csr.of_pairs(len(rows), tasks[shapes[0]], shapes[1]),
    )


def writes(numbers: TasksAndBuffers) -> Csr:
    """For each task: the buffers that it writes."""
    return _buffers_of(numbers, [node.outputs for node in numbers.nodes], are_roots=True)


def takeovers(numbers: TasksAndBuffers, takes_over: bool) -> Csr:
    """For each buffer, the buffers whose storage it may take: required in-place updates, then optional ones.

    Optional are those that nodes declare, and those of the op registry if the runtime `takes_over` inputs.
    """
    rows: dict[int, list[int]] = {}
    buffer = numbers.value_buffer
    for pairs in numbers.in_place.values():
        for new, old in pairs:
            if buffer[new] != buffer[old]:
                rows.setdefault(buffer[new], []).append(buffer[old])
    taking = {op for op, record in numbers.records.items() if record.takeover and takes_over}
    for node in cancellable([node for node in numbers.nodes if node.takeover or node.op in taking]):
        for output, source in inplace_candidates(numbers.graph, node, takes_over):
            b, taken = buffer[node.outputs[output]], buffer[node.inputs[source]]
            if b not in _writes_of(numbers, node) or taken not in _reads_of(numbers, node)[0] or taken == b:
                continue
            if taken not in (row := rows.setdefault(b, [])):
                row.append(taken)
    return _csr_of(rows, len(numbers.buffer_value))


def precedence(numbers: TasksAndBuffers) -> tuple[Csr, Csr]:
    """Rows of `Problem.after_every` and `Problem.after_first`: in-place updates, `after` edges, side effects."""
    every, first = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    readers = _content_readers(numbers)
    for writer, pairs in numbers.in_place.items():
        for new, old in pairs:
            for reader in readers[old]:
                if reader != writer:
                    every[reader].append(writer)
            for reader in readers[new]:
                first[writer].append(reader)
    for task, node in enumerate(numbers.nodes if numbers.made_once else ()):
        for maker in {numbers.made_once.get(_seen_through(numbers, v), task) for v in node.reads} - {task}:
            first[maker].append(task)
    chain: dict[Effect, int] = {}  # effect -> last task with it; such tasks keep their order
    for task, (node, effect) in enumerate(zip(numbers.nodes, numbers.effects, strict=True)):
        for before in [_task_behind(numbers, n) for n in node.after] if node.after else ():
            if before >= 0:
                first[before].append(task)
        if effect is not Effect.PURE and _is_ordered(effect, node):
            if effect in chain:
                first[chain[effect]].append(task)
            chain[effect] = task
    return _csr_of(every, len(numbers.nodes)), _csr_of(first, len(numbers.nodes))


def _buffers_of(numbers: TasksAndBuffers, rows: Sequence[Sequence[int]], are_roots: bool = False) -> Csr:
    """The buffers of rows of values, each once; with `are_roots` of the values that own their storage."""
    row, value = id_columns(rows)
    if are_roots:
        owns = np.array(numbers.roots, np.int64)[value] == value
        row, value = row[owns], value[owns]
    buffer = np.array(numbers.value_buffer, np.int64)[value]
    _, first = np.unique(row * len(numbers.buffer_value) + buffer, return_index=True)
    first.sort()
    return Csr.of_pairs(len(rows), row[first], buffer[first])


def _reads_of(numbers: TasksAndBuffers, node: Node) -> tuple[list[int], list[int]]:
    """(buffers whose bytes a node reads, buffers whose shape only it reads)."""
    record, buffer = numbers.records.get(node.op), numbers.value_buffer
    only: Collection[int] = () if record is None or node.bodies else record.shape_only
    if (node.views or (record is not None and record.views)) and is_view(numbers.graph, node):
        sources = {source for _, source in views_of(numbers.graph, node)}
        only = [i for i in range(len(node.inputs)) if i not in sources]
    if not only:
        return _unique([buffer[v] for v in (node.reads if node.bodies else node.inputs) if v != ABSENT]), []
    full = dict.fromkeys(buffer[v] for i, v in enumerate(node.inputs) if v != ABSENT and i not in only)
    shapes = dict.fromkeys(buffer[v] for i, v in enumerate(node.inputs) if v != ABSENT and i in only)
    return list(full), [b for b in shapes if b not in full]


def _writes_of(numbers: TasksAndBuffers, node: Node) -> set[int]:
    """The buffers that a node writes. An output that is a view of an input writes nothing."""
    return {numbers.value_buffer[v] for v in node.writes if numbers.roots[v] == v}


def _content_readers(numbers: TasksAndBuffers) -> dict[int, list[int]]:
    """Storage in an in-place update -> the tasks that read its content."""
    overwritten = {root for pairs in numbers.in_place.values() for pair in pairs for root in pair}
    readers: dict[int, list[int]] = {root: [] for root in overwritten}
    if overwritten:
        for task, node in enumerate(numbers.nodes):
            for root in {numbers.roots[v] for v in node.reads} & overwritten:
                readers[root].append(task)
    return readers


def _seen_through(numbers: TasksAndBuffers, v: int) -> int:
    """The value that free views lead to from `v`: a storage, or a view that a task makes."""
    while (n := numbers.producer[v]) >= 0 and numbers.node_task[n] < 0:
        node = numbers.graph.nodes[n]
        v = next(node.inputs[source] for output, source in views_of(numbers.graph, node) if node.outputs[output] == v)
    return v


def _task_behind(numbers: TasksAndBuffers, n: int) -> int:
    """Task of node `n`, or of the producer of the storage it views; -1 for a storage that exists at the start."""
    if numbers.node_task[n] >= 0:
        return numbers.node_task[n]
    producer = numbers.producer[numbers.roots[numbers.graph.nodes[n].writes[0]]]
    return numbers.node_task[producer] if producer >= 0 else -1


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
