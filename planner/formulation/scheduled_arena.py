"""The arenas of a plan with copies, and what ends before each node of its rewritten graph starts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graph.analysis.aliasing import storage_roots
from graph.execution.arena import Arena
from graph.execution.scheduled_memory import ScheduledArena
from graph.ir import Graph
from planner.lowering.lowered_graph import LoweredGraph
from planner.lowering.realize import NodeSequence
from planner.problem import HOST
from planner.problem.plan import Plan


def scheduled_arena(
    lowered: LoweredGraph, plan: Plan, runs: NodeSequence, rewritten: Graph, arena: Arena, instances: list[int]
) -> ScheduledArena:
    """Arenas of both spaces. `arena` has the addresses, `instances` the instance of each value of `rewritten`.

    Views share the instance of their storage, which alone is released.
    """
    lowered, schedule, lives = lowered.under(plan.choices), plan.schedule, plan.lifetimes
    assert schedule is not None and plan.host_arena_bytes is not None and lives.workspace_stop is not None
    entry = np.append(runs.position, len(runs.nodes))  # step -> index of its node
    roots = storage_roots(rewritten)
    owner = {k: v for v, k in enumerate(instances) if roots[v] == v}
    released = _grouped((entry[lives.stop[k]], v) for k, v in owner.items() if lives.stop[k] > lives.start[k])
    copies = np.flatnonzero(plan.order >= lowered.source_tasks)
    # A copy ends after the last step that starts before its end, and before the views that follow that step.
    last = np.maximum(copies, np.searchsorted(schedule.start, schedule.end[copies]) - 1)
    workspace = lowered.problem.workspace[plan.order]
    busy = np.flatnonzero(workspace)
    taken = {v: owner[source] for k, v in owner.items() if (source := int(lives.taken_from[k])) >= 0}
    on_host = lowered.problem.space[lives.buffer] == HOST
    return ScheduledArena(
        arena,
        plan.host_arena_bytes,
        frozenset(v for v, k in enumerate(instances) if on_host[k]),
        taken,
        _grouped(zip(entry[last] + 1, entry[copies], strict=True)),
        released,
        dict(zip(entry[busy].tolist(), workspace[busy].tolist(), strict=True)),
        _grouped(zip(entry[lives.workspace_stop[busy]], entry[busy], strict=True)),
    )


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Key -> its values, of pairs of both."""
    result: dict[int, list[int]] = {}
    for key, value in pairs:
        result.setdefault(int(key), []).append(int(value))
    return result
