"""Lowered graphs with copies: an `Offload` and a `Fetch` node for each copied storage.

    v ──▶ remat::Offload ──▶ host:v ──▶ remat::Fetch ──▶ v

The fetch writes v itself, as a second writer: `realize` gives each run of a writer a copy of its own in the rewritten
graph. The nodes follow all others; a plan's order says when they run. A value that only some body plans store is in the
graph under their choices; elsewhere a value without a producer, behind all others, has its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graph.ir import ABSENT, FETCH, OFFLOAD, Cost, Graph, Node, Phase, Value
from planner.lowering.lowered_graph import ACTIVATIONS, LoweredGraph
from planner.problem.alternatives import resolve_choices
from planner.problem.columns import Problem
from planner.problem.copies import CopyProblem, Link, copyable, with_copies
from planner.problem.plan import Candidate, Order


def copy_names(value: str) -> tuple[str, str]:
    """Names of the nodes that copy a value: `offload:VALUE` and `fetch:VALUE`."""
    return f"offload:{value}", f"fetch:{value}"


def copyable_buffers(lowered: LoweredGraph) -> np.ndarray:
    """Buffers that copies may move: those of values whose names for copies are free. int64[c], ascending.

    Values of a node without inputs that takes no time come from outside of the graph, where they may be held.
    """
    nodes, values = {node.name for node in lowered.graph.nodes}, {value.name for value in lowered.graph.values}
    sources = [node for node in lowered.graph.nodes if not node.inputs and node.cost and node.cost.seconds == 0]
    outside = {v for node in sources for v in node.outputs}
    return np.array(
        [
            b
            for b in copyable(lowered.problem).tolist()
            if lowered.buffer_value[b] not in outside
            and nodes.isdisjoint(copy_names(lowered.name_of_buffer(b)))
            and f"host:{lowered.name_of_buffer(b)}" not in values
        ],
        np.int64,
    )


def copied_buffers(copies: CopyProblem, order: Order) -> np.ndarray:
    """Buffers that an order of `copies` copies. int64[c], ascending."""
    tasks = order[order >= copies.original.tasks]
    return np.asarray(copies.buffer[np.unique((tasks - copies.original.tasks) % max(1, len(copies.buffer)))])


def without_empty_copies(copies: CopyProblem, candidate: Candidate) -> Order:
    """The order of a candidate without copies of buffers that have no bytes under its choices."""
    size = resolve_choices(copies.problem, candidate.choices).size[copies.buffer]
    original, order = copies.original.tasks, candidate.order
    is_copy = order >= original
    copied = size[(order - original) % max(1, len(size))] if len(size) else np.ones(len(order), np.int64)
    return np.asarray(order[~is_copy | (copied > 0)])


def renumbered(copies: CopyProblem, order: Order, buffers: np.ndarray) -> Order:
    """An order of `copies` in the task numbers of copies of `buffers` only, ascending; it copies no others."""
    place = np.searchsorted(buffers, copies.buffer)
    number = np.concatenate(
        [np.arange(copies.original.tasks), *(copies.original.tasks + place + i * len(buffers) for i in (0, 1))]
    )
    return np.asarray(number[order])


def with_copy_nodes(
    lowered: LoweredGraph, link: Link, buffers: np.ndarray, order: Sequence[int], overlaps: bool = False
) -> LoweredGraph:
    """The lowered graph with copies of `buffers` (ascending); `order` is in the task numbers of the result.

    With `overlaps`, collectives run beside compute too.

    A node of a copy has the phase that the order has reached when it first runs. Without buffers, the lowered graph.
    """
    if not len(buffers):
        return lowered
    copies = with_copies(lowered.problem, link, buffers, overlaps)
    graph, problem = lowered.graph, copies.problem
    tasks, count = lowered.problem.tasks, len(buffers)
    absent = [b for b in buffers.tolist() if lowered.buffer_value[b] == ABSENT]
    named = [Value(lowered.extra[b], bytes=int(problem.size[b])) for b in absent]
    place = {b: len(graph.values) + i for i, b in enumerate(absent)}
    sources = [place.get(b, lowered.buffer_value[b]) for b in buffers.tolist()]
    values = [*graph.values, *named]
    hosts = [len(values) + i for i in range(count)]
    phases = _phases(problem, tasks, order)
    offloads, fetches = [], []
    for i, (v, h) in enumerate(zip(sources, hosts, strict=True)):
        out, back = copy_names(values[v].name)
        offloads.append(_node(out, OFFLOAD, v, h, phases.get(tasks + i, 0), problem, tasks + i))
        fetches.append(_node(back, FETCH, h, v, phases.get(tasks + count + i, 0), problem, tasks + count + i))
    nodes = (*graph.nodes, *offloads, *fetches)
    new_nodes = list(range(len(graph.nodes), len(nodes)))
    return replace(
        lowered,
        problem=problem,
        graph=_extended(graph, [*named, *(_host_value(values[v]) for v in sources)], nodes),
        roots=[*lowered.roots, *place.values(), *hosts],
        task_node=[*lowered.task_node, *new_nodes],
        node_task=[*lowered.node_task, *range(tasks, tasks + 2 * count)],
        value_buffer=[*lowered.value_buffer, *absent, *range(lowered.problem.buffers, problem.buffers)],
        buffer_value=[*lowered.buffer_value, *hosts],
        category=np.append(lowered.category, np.full(count, ACTIVATIONS, lowered.category.dtype)),
        known={},
        copies=copies,
        plain=lowered,
        copied=lambda plain: with_copy_nodes(plain, link, buffers, order, overlaps),
    )


def _phases(problem: Problem, tasks: int, order: Sequence[int]) -> dict[int, int]:
    """Copy task -> phase that the order has reached at its first run."""
    phase, reached, result = problem.phase.tolist(), 0, dict[int, int]()
    for task in order:
        if task < tasks:
            reached = max(reached, phase[task])
        else:
            result.setdefault(int(task), reached)
    return result


def _node(name: str, op: str, source: int, target: int, phase: int, problem: Problem, task: int) -> Node:
    seconds = float(problem.cost[task]) * problem.tick
    return Node(name, op, (source,), (target,), phase=Phase(phase), cost=Cost(seconds=seconds))


def _host_value(value: Value) -> Value:
    return Value(f"host:{value.name}", value.type, bytes=value.bytes, fixed_bytes=value.fixed_bytes)


def _extended(graph: Graph, values: list[Value], nodes: tuple[Node, ...]) -> Graph:
    return Graph(
        graph.name,
        (*graph.values, *values),
        nodes,
        graph.outputs,
        graph.inputs,
        graph.opset,
        graph.order_is_given,
        graph.gradients,
        graph.annotations,
        graph.gradient_rules,
    )
