"""From a plan back to the graph: the node sequence with its views, bytes of each entry, the rewritten graph.

A view follows the run that writes its storage, once for each such run with a later reader through the view. A view
costs nothing and is one entry of the sequence.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.transforms.replay import replay
from planner.lowering.lowered_graph import LoweredGraph
from planner.problem import HANDED_OUT, RESIDENT, TO_LAST_READ
from planner.problem.columns import sum_over_intervals
from planner.problem.liveness import phase_ends
from planner.problem.plan import Lifetimes, Plan
from planner.problem.recompute import first_run_step


@dataclass(frozen=True, eq=False)
class NodeSequence:
    """Nodes in the order they run, with views."""

    graph: Graph  # the planned graph under the plan's choices
    nodes: list[int]  # its node ids, in the order they run
    position: np.ndarray  # int64[steps]: index in `nodes` of each step of the plan
    step_bytes: np.ndarray  # int64[len(nodes)]: bytes live at each entry
    returned: dict[int, int]  # output value -> index of the entry whose copy is returned

    @cached_property
    def rewritten(self) -> Graph:
        """The rewritten graph, made when it is first needed: many callers need the report alone."""
        with gc_paused():
            return realize(self)

    def runs(self, lowered: LoweredGraph) -> list[tuple[str, int]]:
        """(node name, run number) of each entry; runs of a node count from 0."""
        names, nodes = [node.name for node in lowered.graph.nodes], np.array(self.nodes, np.int64)
        by_node = np.argsort(nodes, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(nodes, minlength=len(names)))])
        number = np.empty(len(nodes), np.int64)
        number[by_node] = np.arange(len(nodes)) - first[nodes[by_node]]
        return list(zip([names[n] for n in self.nodes], number.tolist(), strict=True))


def node_sequence(lowered: LoweredGraph, plan: Plan) -> NodeSequence:
    """Node sequence of a plan: its steps with views between them, and the bytes of each entry. O(nodes + reads)."""
    lowered = lowered.under(plan.choices)
    producer = lowered.producers()
    first, leaving = _contents(lowered, plan, producer)
    views_of = _views_by_instance(lowered, plan, producer, first, leaving)
    lifetimes, steps = plan.lifetimes, len(plan.order)
    retained, until = _retained(lowered, lifetimes, steps), _until(lowered, lifetimes, steps)
    size, hold = lowered.problem.size, lowered.problem.hold
    at_step: dict[int, list[tuple[int, int]]] = {}  # step -> (view node, instance), in node order
    written_at = _written_at(plan)
    for k, views in views_of.items():
        at_step.setdefault(int(written_at[k]), []).extend((n, k) for n in views)

    nodes: list[int] = []
    byte_list: list[int] = []
    position = np.empty(steps, np.int64)
    view_place: dict[tuple[int, int], int] = {}  # (view node, instance) -> its index in `nodes`

    def append_views(step: int) -> None:
        entries = sorted(at_step.get(step, ()))
        # A storage read only by unread views is live until the last such view.
        last = {
            k: i for i, (_, k) in enumerate(entries) if until[k] < step + 2 and hold[lifetimes.buffer[k]] != RESIDENT
        }
        for i, (n, k) in enumerate(entries):
            view_place[n, k] = len(nodes)
            nodes.append(n)
            byte_list.append(
                int(retained[step + 1]) + sum(int(size[lifetimes.buffer[k]]) for k, end in last.items() if end >= i)
            )

    append_views(-1)
    task_node, step_bytes = lowered.task_node, plan.step_bytes.tolist()
    if not at_step:
        position[:] = np.arange(steps)
        nodes += [task_node[task] for task in plan.order.tolist()]
        byte_list += step_bytes
    for step, task in enumerate(plan.order.tolist() if at_step else ()):
        position[step] = len(nodes)
        nodes.append(task_node[task])
        byte_list.append(step_bytes[step])
        if step in at_step:
            append_views(step)
    returned = {}
    for v in lowered.graph.outputs:
        k = leaving[lowered.roots[v]]
        if producer[v] >= 0:
            task = lowered.node_task[producer[v]]
            if task < 0:
                returned[v] = view_place[producer[v], k]
            elif lowered.roots[v] == v:
                returned[v] = int(position[lifetimes.writer_step[k]])
            else:  # a view that its task makes once
                returned[v] = int(position[np.flatnonzero(plan.order == task)[-1]])
    return NodeSequence(lowered.graph, nodes, position, np.asarray(byte_list, np.int64), returned)


def _written_at(plan: Plan) -> np.ndarray:
    """int64[k]: the step after which each instance is written, and its views can be made; -1: from the start.

    The step that writes it; of engines side by side, the last step that starts before that step has ended.
    """
    writer = plan.lifetimes.writer_step
    if plan.schedule is None:
        return writer
    ended = np.searchsorted(plan.schedule.start, np.append(plan.schedule.end, 0)[writer]) - 1
    return np.where(writer >= 0, np.maximum(writer, ended), -1)


def realize(order: NodeSequence) -> Graph:
    """Rewritten graph: the entries of `order` as nodes, every read bound to the latest copy."""
    return replay(order.graph, order.nodes, order.returned)


def value_instances(lowered: LoweredGraph, plan: Plan, order: NodeSequence, rewritten: Graph) -> list[int]:
    """For each value of the rewritten graph: the instance of `plan.lifetimes` that holds its bytes."""
    lowered = lowered.under(plan.choices)
    lifetimes, buffer = plan.lifetimes, lowered.value_buffer
    at_start = {int(lifetimes.buffer[k]): int(k) for k in np.flatnonzero(lifetimes.writer_step < 0)}
    step_at = {int(p): step for step, p in enumerate(order.position)}
    current = dict(at_start)  # buffer -> its latest instance
    result = [-1] * len(rewritten.values)
    for place, n in enumerate(order.nodes):
        if place in step_at:
            for k in lifetimes.written_instance[step_at[place]].tolist():
                current[int(lifetimes.buffer[k])] = k
        for old, new in zip(lowered.graph.nodes[n].outputs, rewritten.nodes[place].outputs, strict=True):
            if new >= 0:
                result[new] = current[buffer[old]]
    unwritten = [v for v, n in enumerate(lowered.producers()) if n < 0]
    for new, old in enumerate(unwritten):  # `replay` puts these first, in their order
        result[new] = at_start[buffer[old]]
    return result


def _views_by_instance(
    lowered: LoweredGraph, plan: Plan, producer: list[int], first: dict[int, int], leaving: dict[int, int]
) -> dict[int, list[int]]:
    """Instance -> view nodes of it, ascending. `first` and `leaving` come from `_contents`."""
    graph, lifetimes = lowered.graph, plan.lifetimes
    is_view = [task < 0 for task in lowered.node_task]
    if not any(is_view):
        return {}
    views_of: dict[int, set[int]] = {}

    def add(k: int, v: int) -> None:
        """Add the view that makes value `v`, and the views it is made of, to instance `k`."""
        for n in _view_chain(lowered, producer, v):
            views_of.setdefault(k, set()).add(n)

    views_read, shapes_read = _views_read(lowered, producer, is_view)
    pointer, bound = lifetimes.read_instance.pointer.tolist(), lifetimes.read_instance.index.tolist()
    for step, task in enumerate(plan.order.tolist()):
        for place, v in views_read.get(task, ()):
            add(bound[pointer[step] + place], v)
    for v in graph.outputs:
        add(leaving[lowered.roots[v]], v)
    used = set().union(*views_of.values())
    for n in np.flatnonzero(is_view).tolist():
        for v in graph.nodes[n].writes if n not in used else ():
            add(first[lowered.roots[v]], v)
    if shapes_read:
        _add_views_for_shapes(lowered, plan, producer, first, shapes_read, views_of)
    return {k: sorted(views) for k, views in views_of.items()}


def _add_views_for_shapes(
    lowered: LoweredGraph,
    plan: Plan,
    producer: list[int],
    first: dict[int, int],
    shapes_read: list[tuple[int, int]],
    views_of: dict[int, set[int]],
) -> None:
    """Add to `views_of` views of the first instance for tasks that read a shape before the view has a reader of bytes.

    `shapes_read` comes from `_views_read`. A shape holds no storage, so the view may be of any instance written before.
    """
    written_at = _written_at(plan)
    made: dict[int, int] = {}  # view node -> first step after which it is made
    for k, views in views_of.items():
        for n in views:
            made[n] = min(made.get(n, len(plan.order)), int(written_at[k]))
    first_step = first_run_step(lowered.problem, plan.order)
    for task, v in shapes_read:
        if made[producer[v]] >= first_step[task]:
            views_of.setdefault(first[lowered.roots[v]], set()).update(_view_chain(lowered, producer, v))


def _view_chain(lowered: LoweredGraph, producer: list[int], v: int) -> Iterator[int]:
    """The view nodes that lead to value `v`, from the last one to the one that reads its storage."""
    roots = lowered.roots
    while producer[v] >= 0 and lowered.node_task[producer[v]] < 0:
        yield producer[v]
        v = next(u for u in lowered.graph.nodes[producer[v]].inputs if u >= 0 and roots[u] == roots[v])


def _views_read(
    lowered: LoweredGraph, producer: list[int], is_view: list[bool]
) -> tuple[dict[int, list[tuple[int, int]]], list[tuple[int, int]]]:
    """Views that tasks read.

    Returns:
        Task -> (index in its row of `reads`, value) for every view whose bytes it reads; (task, value) of every view
        of which a task reads the shape only.
    """
    through: dict[int, list[tuple[int, int]]] = {}
    shapes: list[tuple[int, int]] = []
    rows = lowered.problem.reads.lists()
    for task, n in enumerate(lowered.task_node):
        for v in lowered.graph.nodes[n].reads:
            if producer[v] < 0 or not is_view[producer[v]]:
                continue
            if lowered.value_buffer[v] in rows[task]:
                through.setdefault(task, []).append((rows[task].index(lowered.value_buffer[v]), v))
            else:
                shapes.append((task, v))
    return through, shapes


def _contents(lowered: LoweredGraph, plan: Plan, producer: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """(first instance, returned instance) by root value, for each storage that a view or an output uses.

    The returned instance is the last one; for HANDED_OUT buffers, the last one before the end of the phase.
    """
    lifetimes, problem, value_buffer = plan.lifetimes, lowered.problem, lowered.value_buffer
    views = [lowered.graph.nodes[n] for n in np.flatnonzero(np.array(lowered.node_task) < 0)]
    roots = {lowered.roots[v] for v in itertools.chain(lowered.graph.outputs, *(node.writes for node in views))}
    buffer = lifetimes.buffer.tolist()
    at_start = {buffer[k]: k for k in np.flatnonzero(lifetimes.writer_step < 0).tolist()}
    first = {v: at_start[value_buffer[v]] for v in roots if producer[v] < 0}
    leaving = dict(first)
    written: dict[int, list[int]] = {}  # task -> root values it writes
    for v in roots.difference(first):
        written.setdefault(lowered.node_task[producer[v]], []).append(v)
    ends = phase_ends(problem, plan.order)
    for step, task in enumerate(plan.order.tolist()):
        if task not in written:
            continue
        instance = {buffer[k]: k for k in lifetimes.written_instance[step].tolist()}
        for v in written[task]:
            k = instance[value_buffer[v]]
            first.setdefault(v, k)
            if problem.hold[value_buffer[v]] != HANDED_OUT or step < ends[problem.phase[task]]:
                leaving[v] = k
    return first, leaving


def _until(lowered: LoweredGraph, lifetimes: Lifetimes, steps: int) -> np.ndarray:
    """int64[k]: first step without the instance; steps + 1 for an instance held after the last step."""
    held = (lowered.problem.hold[lifetimes.buffer] != TO_LAST_READ) & (lifetimes.stop == steps)
    return np.where(held, steps + 1, lifetimes.stop)


def _retained(lowered: LoweredGraph, lifetimes: Lifetimes, steps: int) -> np.ndarray:
    """int64[steps + 1]: bytes live both after step i - 1 and in step i; entry 0: bytes at the start."""
    if not steps:
        return np.array([lowered.resident_bytes])
    resident = lowered.problem.hold[lifetimes.buffer] == RESIDENT
    size = np.where(lifetimes.stop > lifetimes.start, lowered.problem.size[lifetimes.buffer], 0)
    begin = np.where((lifetimes.writer_step < 0) | resident, 0, lifetimes.start + 1)
    end = np.maximum(_until(lowered, lifetimes, steps), begin)
    return sum_over_intervals(begin, end, size, steps + 1)
