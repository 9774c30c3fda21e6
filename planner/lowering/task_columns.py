"""The columns of tasks: what each costs and needs, and whether it may run more than once."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from graph.analysis.aliasing import last_uses
from graph.analysis.cost import DeviceProfile, seconds_of, workspace_of
from graph.cancellation import cancellable
from graph.formats.onnx.runtime_workspace import runtime_workspace
from graph.ir import Effect, Node, Role
from graph.ops.registry import HEAVY, NEVER
from planner import problem as columns
from planner.lowering.tasks_and_buffers import TasksAndBuffers
from planner.request.target_runtime import Runtime

# A tick is a power of two in seconds, so small that rounding is below 1e-12 of the total.
TICKS_IN_TOTAL = 2**44
MIN_TOTAL_SECONDS = 1e-290  # seconds of all tasks; keeps the tick a normal float

#: `Node.recompute` as `Problem.recompute`.
PREFERENCES = {None: columns.ALLOW, "allow": columns.ALLOW, "never": columns.FORBID, "prefer": columns.PREFER}


def ticks(numbers: TasksAndBuffers, device: DeviceProfile, runtime: Runtime) -> tuple[np.ndarray, float]:
    """(int64[n] ticks of each task, seconds of one tick)."""
    nodes = cancellable(numbers.nodes)
    seconds = np.array([seconds_of(numbers.graph, node, device) for node in nodes], np.float64)
    if runtime.kernel_seconds:
        seconds = seconds + runtime.kernel_seconds
    total = float(seconds.sum())
    tick = 2.0 ** math.ceil(math.log2(max(total, MIN_TOTAL_SECONDS) / TICKS_IN_TOTAL)) if total > 0 else 1.0
    return np.rint(seconds / tick).astype(np.int64), tick


def workspaces(numbers: TasksAndBuffers, runtime: Runtime) -> np.ndarray:
    """int64[n]: bytes allocated only during one run of each task, by a runtime's kernels where those are known."""
    nodes, graph, roots = numbers.nodes, numbers.graph, numbers.roots
    known = np.array([workspace_of(graph, node) for node in cancellable(nodes)], np.int64)
    if not runtime.decomposes:
        return known
    last = last_uses(roots, (node.reads for node in nodes))
    kept = {roots[v] for v in graph.outputs}
    for task, node in enumerate(cancellable(nodes)):
        if node.cost.workspace_bytes is None:
            inner = [v for v in node.reads if graph.values[roots[v]].role is Role.ACTIVATION]
            dying = {v for v in inner if last[roots[v]] == task and roots[v] not in kept}
            known[task] = max(known[task], runtime_workspace(graph, node, dying))
    return known


def engines(numbers: TasksAndBuffers) -> np.ndarray:
    """int8[n]: the engine of each task."""
    collective = Effect.COLLECTIVE
    communicates = np.array([effect is collective for effect in numbers.effects], bool)
    return np.where(communicates, columns.COMMUNICATION, columns.COMPUTE).astype(np.int8)


def repeats(numbers: TasksAndBuffers, repeats_collectives: bool) -> np.ndarray:
    """int8[n]: whether each task may run more than once (`Problem.repeat`)."""
    repeat = np.full(len(numbers.nodes), columns.FREE, np.int8)
    for task, effect in enumerate(numbers.effects):
        if effect is not Effect.PURE:
            repeat[task] = _repeat(numbers, effect, numbers.nodes[task], repeats_collectives)
    repeat[[*numbers.in_place, *numbers.unrepeated]] = columns.NEVER
    return repeat


def _repeat(numbers: TasksAndBuffers, effect: Effect, node: Node, repeats_collectives: bool) -> int:
    """Whether a node with an effect may run more than once."""
    if effect is Effect.ONCE or effect is Effect.UNSTABLE:
        return columns.NEVER
    if effect is Effect.RANDOM and node.stream is None:
        return columns.NEVER
    record = numbers.records.get(node.op)
    if record is not None and record.recompute == NEVER and node.stream is None:
        return columns.NEVER
    is_pinned = effect is Effect.COLLECTIVE and not repeats_collectives
    return columns.SAME_ORDER if is_pinned else columns.FREE


def heavy(numbers: TasksAndBuffers) -> np.ndarray:
    """bool[n]: whether mirroring does not recompute each task: declared, or by the op registry."""
    ops = {op for op, record in numbers.records.items() if record.recompute in (HEAVY, NEVER)}
    return np.array(
        [node.op in ops or bool(node.bodies) if node.heavy is None else node.heavy for node in numbers.nodes], bool
    )


def preferences(numbers: TasksAndBuffers, keep: Collection[int], recompute: Collection[int]) -> np.ndarray:
    """int8[n]: the user's preference about recomputation of each task (`Problem.recompute`), also by values."""
    preference = np.fromiter([PREFERENCES[node.recompute] for node in numbers.nodes], np.int8, len(numbers.nodes))
    preferred, kept = numbers.tasks_writing(recompute), numbers.tasks_writing(keep)
    preference[[task for task in preferred if preference[task] != columns.FORBID]] = columns.PREFER
    preference[kept] = columns.FORBID
    return preference
