"""Lower a graph to the columns of a `Problem`; `realize.py` is the inverse."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from graph.analysis.cost import DeviceProfile
from graph.ir import Graph
from planner.lowering import buffer_columns, rows, task_columns
from planner.lowering.lowered_graph import LoweredGraph
from planner.lowering.tasks_and_buffers import TasksAndBuffers
from planner.problem import Problem
from planner.problem.columns import frozen
from planner.request.target_runtime import Runtime


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
    numbers = TasksAndBuffers(graph)
    reads, shape_reads = rows.reads(numbers)
    after_every, after_first = rows.precedence(numbers)
    cost, tick = task_columns.ticks(numbers, device, runtime)
    size = np.array([graph.values[v].nbytes for v in numbers.buffer_value], np.int64)
    marked = np.zeros(len(size), bool)
    marked[[numbers.value_buffer[v] for v in checkpoints]] = True
    problem = Problem(
        cost=cost,
        workspace=_rounded(task_columns.workspaces(numbers, runtime), runtime.rounding_bytes),
        phase=np.array([node.phase for node in numbers.nodes], np.int8),
        engine=task_columns.engines(numbers),
        repeat=task_columns.repeats(numbers, repeats_collectives),
        optional=np.zeros(len(numbers.nodes), bool),
        heavy=task_columns.heavy(numbers),
        recompute=task_columns.preferences(numbers, keep, recompute),
        size=_rounded(size, runtime.rounding_bytes),
        space=np.zeros(len(size), np.int8),
        hold=buffer_columns.holds(numbers, runtime.returns_forward_outputs),
        checkpoint=marked,
        reads=reads,
        shape_reads=shape_reads,
        writes=rows.writes(numbers),
        takeover=rows.takeovers(numbers, runtime.takes_over),
        after_every=after_every,
        after_first=after_first,
        tick=tick,
    )
    return LoweredGraph(
        problem,
        graph,
        numbers.roots,
        numbers.task_node,
        numbers.node_task,
        numbers.value_buffer,
        numbers.buffer_value,
        buffer_columns.categories(numbers),
    )


def _rounded(count: np.ndarray, to: int) -> np.ndarray:
    return frozen(np.asarray(-(-count // to) * to))
