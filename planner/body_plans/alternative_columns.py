"""Columns of body alternatives: cost, workspace and reads of both tasks, and sizes of the buffers between them.

The columns are read off graphs with every group at its k-th alternative, so they equal those of the graph that runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from graph.analysis.cost import DeviceProfile, seconds_of, workspace_of
from graph.ir import ABSENT, Graph
from graph.loop_remat import with_save_policies
from planner.lowering.lowered_graph import ACTIVATIONS, BodyAlternatives, LoweredGraph
from planner.problem import NEVER as ONCE
from planner.problem import TO_LAST_READ, Choices, Csr
from planner.request.target_runtime import Runtime


class _ChangedTask(NamedTuple):
    """Columns of a task under an alternative."""

    task: int
    cost: int  # ticks
    workspace: int  # bytes
    reads: list[int]


class _Alternative(NamedTuple):
    """The tasks and buffers that an alternative changes."""

    tasks: list[_ChangedTask]
    buffers: list[int]
    sizes: list[int]  # bytes of each of `buffers`


class ChoiceTable:
    """Columns of all groups, read off the graphs with every group at its k-th alternative."""

    def __init__(
        self,
        lowered: LoweredGraph,
        groups: list[BodyAlternatives],
        kinds: list[int],
        device: DeviceProfile,
        runtime: Runtime,
    ):
        self.base, self.groups, self.kinds, self.device, self.runtime = lowered, groups, kinds, device, runtime
        graph = lowered.graph
        self.number = {value.name: lowered.value_buffer[v] for v, value in enumerate(graph.values)}
        self.extra: dict[str, tuple[int, int]] = {}  # value that exists in alternatives only -> (buffer, task)
        self.takeover: dict[int, int] = {}  # buffer -> buffer whose storage it takes
        deepest = max(len(group.savings) for group in groups)
        self.graphs = [graph, *(self._all_at(k) for k in range(1, deepest))]
        self.values = [{value.name: v for v, value in enumerate(g.values)} for g in self.graphs]

    def _all_at(self, k: int) -> Graph:
        """The graph with every group at alternative `k`, where it has one; numbers its new buffers."""
        chosen = {g.pair: s for g in self.groups if k < len(g.savings) and (s := g.savings[k]) is not None}
        graph = with_save_policies(self.base.graph, chosen)
        for group in self.groups:
            for n in (group.pair.forward, group.pair.backward):
                node = graph.nodes[n]
                for v in node.writes:
                    self._number(graph.values[v].name, self.base.node_task[n])
                for output, source in node.in_place:
                    output_name, input_name = (
                        graph.values[v].name for v in (node.outputs[output], node.inputs[source])
                    )
                    self.takeover[self.number[output_name]] = self.number[input_name]
        return graph

    def _number(self, name: str, task: int) -> None:
        """Add a buffer for a value that the unchanged graph does not have."""
        if name not in self.number:
            self.number[name] = len(self.base.buffer_value) + len(self.extra)
            self.extra[name] = (self.number[name], task)

    def lowered(self) -> LoweredGraph:
        """The lowered graph with the new buffers and the choices."""
        base, added = self.base, len(self.extra)
        problem = base.problem
        writes = problem.writes.lists()
        for buffer, task in self.extra.values():
            writes[task].append(buffer)

        def grown(column: np.ndarray, filled: int) -> np.ndarray:
            return np.concatenate([column, np.full(added, filled, column.dtype)])

        problem = replace(
            problem,
            size=grown(problem.size, 0),
            space=grown(problem.space, 0),
            writes=Csr.of(writes),
            hold=grown(problem.hold, TO_LAST_READ),
            checkpoint=grown(problem.checkpoint, 0),
            takeover=self._takeovers(),
            choices=self._choices(),
            repeat=self._repeat(),
        )
        return replace(
            base,
            problem=problem,
            buffer_value=[*base.buffer_value, *[ABSENT] * added],
            category=grown(base.category, ACTIVATIONS),
            groups=tuple(self.groups),
            known={},
            extra={buffer: name for name, (buffer, _) in self.extra.items()},
        )

    def _takeovers(self) -> Csr:
        input_name = [[self.takeover[b]] if b in self.takeover else [] for b, _ in self.extra.values()]
        return Csr.of([*self.base.problem.takeover.lists(), *input_name])

    def _repeat(self) -> np.ndarray:
        """Column `repeat`: a backward node that overwrites its input rows (snapshots, tails) runs once."""
        repeat = self.base.problem.repeat.copy()
        overwriting = [g.pair.backward for g in self.groups if any(s and s.checkpoints for s in g.savings)]
        repeat[[self.base.node_task[n] for n in overwriting]] = ONCE
        return repeat

    def _choices(self) -> Choices:
        rows = [self._alternative(group, k) for group in self.groups for k in range(len(group.savings))]
        tasks = [task for row in rows for task in row.tasks]
        return Choices(
            np.repeat(np.arange(len(self.groups)), [len(group.savings) for group in self.groups]),
            np.array(self.kinds, np.int64),
            Csr.of([each.task for each in row.tasks] for row in rows),
            np.array([each.cost for each in tasks], np.int64),
            np.array([each.workspace for each in tasks], np.int64),
            Csr.of(each.reads for each in tasks),
            Csr.of(row.buffers for row in rows),
            np.array([size for row in rows for size in row.sizes], np.int64),
        )

    def _buffers_of(self, group: BodyAlternatives) -> list[str]:
        """Names of values whose size depends on the alternative: those saved for the backward node."""
        dropped = [self.base.graph.values[v].name for v in group.pair.droppable]
        tasks = {self.base.node_task[n] for n in (group.pair.forward, group.pair.backward)}
        return [*dropped, *(name for name, (_, writer) in self.extra.items() if writer in tasks)]

    def _alternative(self, group: BodyAlternatives, k: int) -> _Alternative:
        """What alternative `k` of a group changes; nothing for the first."""
        if not k:
            return _Alternative([], [], [])
        graph, values, rounding = self.graphs[k], self.values[k], self.runtime.rounding_bytes
        tasks = []
        for n in (group.pair.forward, group.pair.backward):
            node = graph.nodes[n]
            seconds = seconds_of(graph, node, self.device) + self.runtime.kernel_seconds
            reads = dict.fromkeys(self.number[graph.values[v].name] for v in node.reads)
            workspace = -(-workspace_of(graph, node) // rounding) * rounding
            ticks = round(seconds / self.base.problem.tick)
            tasks.append(_ChangedTask(self.base.node_task[n], ticks, workspace, list(reads)))
        names = self._buffers_of(group)
        sizes = [graph.values[values[name]].nbytes if name in values else 0 for name in names]
        return _Alternative(tasks, [self.number[name] for name in names], [-(-s // rounding) * rounding for s in sizes])
