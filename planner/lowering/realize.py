"""From a plan back to the graph: the whole sequence with its views, its timeline, the rewritten graph.

A view stands right after the run whose storage it shows, once per such run that has a later reader
through it. It costs nothing and is one entry of the sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graph.ir import Graph, producers
from graph.transforms.replay import replay
from planner.lowering.lower import LoweredGraph
from planner.problem import HANDED_OUT, RESIDENT, TO_LAST_READ
from planner.problem.liveness import phase_ends
from planner.problem.plan import Lifetimes, Plan


@dataclass(frozen=True, eq=False, slots=True)
class NodeSequence:
    """Everything that runs, views included."""

    graph: Graph  # what was lowered, as the plan's choices make it
    nodes: list[int]  # its node ids, in the order they run
    position: np.ndarray  # int64[steps]: place of each step of the plan among `nodes`
    step_bytes: np.ndarray  # int64[len(nodes)]
    handed_out: dict[int, int]  # output written in the sequence -> place of the run whose copy leaves

    def runs(self, lowered: LoweredGraph) -> list[tuple[str, int]]:
        """(node name, run) per entry; runs of a node count from 0."""
        count = [0] * len(lowered.graph.nodes)
        result = []
        for n in self.nodes:
            result.append((lowered.graph.nodes[n].name, count[n]))
            count[n] += 1
        return result


def node_sequence(lowered: LoweredGraph, plan: Plan) -> NodeSequence:
    """The plan's steps with its views among them, and the bytes of each entry. O(nodes + reads)."""
    lowered = lowered.under(plan.choices)
    producer = producers(lowered.graph)
    first, leaving = _contents(lowered, plan, producer)
    shown = _views_by_instance(lowered, plan, producer, first, leaving)
    lives, steps = plan.lifetimes, len(plan.order)
    retained, until = _retained(lowered, lives, steps), _until(lowered, lives, steps)
    size, hold = lowered.problem.size, lowered.problem.hold
    at_step: dict[int, list[tuple[int, int]]] = {}  # step -> (view node, instance), in node order
    for k, views in shown.items():
        at_step.setdefault(int(lives.writer_step[k]), []).extend((n, k) for n in views)

    nodes: list[int] = []
    byte_list: list[int] = []
    position = np.empty(steps, np.int64)
    view_place: dict[tuple[int, int], int] = {}  # (view node, instance) -> its place

    def show(step: int) -> None:
        entries = sorted(at_step.get(step, ()))
        # A storage that only an unread view reads lives until the last such view.
        last = {k: i for i, (_, k) in enumerate(entries) if until[k] < step + 2 and hold[lives.buffer[k]] != RESIDENT}
        for i, (n, k) in enumerate(entries):
            view_place[n, k] = len(nodes)
            nodes.append(n)
            byte_list.append(
                int(retained[step + 1]) + sum(int(size[lives.buffer[k]]) for k, end in last.items() if end >= i)
            )

    show(-1)
    task_node, step_bytes = lowered.task_node, plan.step_bytes.tolist()
    for step, task in enumerate(plan.order.tolist()):
        position[step] = len(nodes)
        nodes.append(task_node[task])
        byte_list.append(step_bytes[step])
        if step in at_step:
            show(step)
    handed_out = {}
    for v in lowered.graph.outputs:
        k = leaving[lowered.roots[v]]
        if producer[v] >= 0:
            is_view = lowered.node_task[producer[v]] < 0
            handed_out[v] = view_place[producer[v], k] if is_view else int(position[lives.writer_step[k]])
    return NodeSequence(lowered.graph, nodes, position, np.asarray(byte_list, np.int64), handed_out)


def realize(order: NodeSequence) -> Graph:
    """The rewritten graph: `order` as nodes, every read bound to the latest copy."""
    return replay(order.graph, order.nodes, order.handed_out)


def value_instances(lowered: LoweredGraph, plan: Plan, order: NodeSequence, rewritten: Graph) -> list[int]:
    """Per value of the rewritten graph the instance of `plan.lifetimes` that holds its bytes."""
    lowered = lowered.under(plan.choices)
    lives, buffer = plan.lifetimes, lowered.value_buffer
    at_start = {int(lives.buffer[k]): int(k) for k in np.flatnonzero(lives.writer_step < 0)}
    step_at = {int(p): step for step, p in enumerate(order.position)}
    current = dict(at_start)  # buffer -> its latest instance
    result = [-1] * len(rewritten.values)
    for place, n in enumerate(order.nodes):
        if place in step_at:
            for k in lives.written_instance[step_at[place]].tolist():
                current[int(lives.buffer[k])] = k
        for old, new in zip(lowered.graph.nodes[n].outputs, rewritten.nodes[place].outputs, strict=True):
            if new >= 0:
                result[new] = current[buffer[old]]
    unwritten = [v for v, n in enumerate(producers(lowered.graph)) if n < 0]
    for new, old in enumerate(unwritten):  # `replay` puts these first, in their order
        result[new] = at_start[buffer[old]]
    return result


def _views_by_instance(
    lowered: LoweredGraph, plan: Plan, producer: list[int], first: dict[int, int], leaving: dict[int, int]
) -> dict[int, list[int]]:
    """Instance -> view nodes that show it, ascending; `first` and `leaving` as from `_contents`."""
    graph, lives = lowered.graph, plan.lifetimes
    is_view = [task < 0 for task in lowered.node_task]
    if not any(is_view):
        return {}
    shown: dict[int, set[int]] = {}

    def need(k: int, v: int) -> None:
        """The view that makes value `v`, and the views it is made of, show instance `k`."""
        while producer[v] >= 0 and is_view[producer[v]]:
            shown.setdefault(k, set()).add(producer[v])
            v = next(u for u in graph.nodes[producer[v]].inputs if u >= 0 and lowered.roots[u] == lowered.roots[v])

    through = _views_read(lowered, producer, is_view)
    pointer, bound = lives.read_instance.pointer.tolist(), lives.read_instance.index.tolist()
    for step, task in enumerate(plan.order.tolist()):
        for place, v in through.get(task, ()):
            need(bound[pointer[step] + place], v)

    for v in graph.outputs:
        need(leaving[lowered.roots[v]], v)
    placed = {n for views in shown.values() for n in views}
    for n, node in enumerate(graph.nodes):
        if is_view[n] and n not in placed:
            for v in node.writes:
                need(first[lowered.roots[v]], v)
    return {k: sorted(views) for k, views in shown.items()}


def _views_read(lowered: LoweredGraph, producer: list[int], is_view: list[bool]) -> dict[int, list[tuple[int, int]]]:
    """Task -> (place in its row of `reads`, value) for every view value it reads."""
    through: dict[int, list[tuple[int, int]]] = {}
    rows = lowered.problem.reads.lists()
    for task, n in enumerate(lowered.task_node):
        for v in lowered.graph.nodes[n].reads:
            if producer[v] >= 0 and is_view[producer[v]] and lowered.value_buffer[v] in rows[task]:
                through.setdefault(task, []).append((rows[task].index(lowered.value_buffer[v]), v))
    return through


def _contents(lowered: LoweredGraph, plan: Plan, producer: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Of each storage that is shown or an output, by its value: its first instance, and the one that leaves.

    The latter is the last one, or what is there when its phase ends where outputs are handed out then.
    """
    lives, problem, value_buffer = plan.lifetimes, lowered.problem, lowered.value_buffer
    views = [lowered.graph.nodes[n] for n, task in enumerate(lowered.node_task) if task < 0]
    wanted = {lowered.roots[v] for ids in (lowered.graph.outputs, *(node.writes for node in views)) for v in ids}
    buffer = lives.buffer.tolist()
    at_start = {buffer[k]: k for k in np.flatnonzero(lives.writer_step < 0).tolist()}
    first = {v: at_start[value_buffer[v]] for v in wanted if producer[v] < 0}
    leaving = dict(first)
    made: dict[int, list[int]] = {}  # task -> wanted values it writes
    for v in wanted.difference(first):
        made.setdefault(lowered.node_task[producer[v]], []).append(v)
    ends = phase_ends(problem, plan.order)
    for step, task in enumerate(plan.order.tolist()):
        if task not in made:
            continue
        instance = {buffer[k]: k for k in lives.written_instance[step].tolist()}
        for v in made[task]:
            k = instance[value_buffer[v]]
            first.setdefault(v, k)
            if problem.hold[value_buffer[v]] != HANDED_OUT or step < ends[problem.phase[task]]:
                leaving[v] = k
    return first, leaving


def _until(lowered: LoweredGraph, lives: Lifetimes, steps: int) -> np.ndarray:
    """int64[k]: first step that starts without the instance; steps + 1 for what is there after the last."""
    held = (lowered.problem.hold[lives.buffer] != TO_LAST_READ) & (lives.stop == steps)
    return np.where(held, steps + 1, lives.stop)


def _retained(lowered: LoweredGraph, lives: Lifetimes, steps: int) -> np.ndarray:
    """int64[steps + 1]: bytes live both after step i - 1 and in step i; entry 0 is what is there at the start."""
    if not steps:
        return np.array([lowered.resident_bytes])
    resident = lowered.problem.hold[lives.buffer] == RESIDENT
    size = np.where(lives.stop > lives.start, lowered.problem.size[lives.buffer], 0)
    begin = np.where((lives.writer_step < 0) | resident, 0, lives.start + 1)
    change = np.zeros(steps + 2, np.int64)
    np.add.at(change, begin, size)
    np.subtract.at(change, np.maximum(_until(lowered, lives, steps), begin), size)
    return np.asarray(np.cumsum(change)[: steps + 1])
