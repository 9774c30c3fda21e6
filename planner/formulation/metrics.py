"""Metrics of a plan: peak by category, largest holders, kept and recomputed values, layout section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.errors import IllegalPlan
from planner.formulation.memory_accounting import MemoryAccounting
from planner.lowering.lowered_graph import CATEGORIES, LoweredGraph
from planner.lowering.realize import NodeSequence
from planner.problem import BACKWARD, DEVICE, FORWARD, RESIDENT, TO_LAST_READ
from planner.problem.plan import Plan
from planner.problem.recompute import first_run_step


def peak_by(lowered: LoweredGraph, plan: Plan, count: MemoryAccounting) -> dict[str, int]:
    """Bytes of the peak step by category, with workspace and reserve."""
    lowered = lowered.under(plan.choices)
    parts = dict.fromkeys((*CATEGORIES, "workspace", "reserve"), 0)
    parts["reserve"] = count.reserve_bytes
    if len(plan.step_bytes):
        step = int(np.argmax(plan.step_bytes))
        parts["workspace"] = int(lowered.problem.workspace[plan.order[step]])
        for category, held in zip(CATEGORIES, _held_at(lowered, plan, step), strict=True):
            parts[category] = held
    else:
        parts["parameters"] = lowered.resident_bytes
    if count.excluded_bytes:
        resident = lowered.problem.hold == RESIDENT
        held_bytes = np.zeros(len(CATEGORIES), np.int64)
        np.add.at(held_bytes, lowered.category[resident], lowered.problem.size[resident])
        for category, held in zip(CATEGORIES, held_bytes.tolist(), strict=True):
            parts[category] -= held
    return parts


def _held_at(lowered: LoweredGraph, plan: Plan, step: int) -> list[int]:
    """Bytes live at `step` by category; an in-place output counts as its input until the next step."""
    lifetimes = plan.lifetimes
    live = (lifetimes.start <= step) & (lifetimes.stop > step) & (lowered.problem.space[lifetimes.buffer] == DEVICE)
    live &= ~((lifetimes.start == step) & (lifetimes.taken_from >= 0))
    buffers = lifetimes.buffer[live]
    held = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(held, lowered.category[buffers], lowered.problem.size[buffers])
    return [int(x) for x in held]


def peak_holders(lowered: LoweredGraph, plan: Plan, limit: int = 10, residents: bool = True) -> list[dict[str, Any]]:
    """The `limit` largest values on the device at the peak, with lifetimes in steps; optionally without residents."""
    if not len(plan.step_bytes):
        return []
    lowered = lowered.under(plan.choices)
    step, lifetimes = int(np.argmax(plan.step_bytes)), plan.lifetimes
    shown = residents | (lowered.problem.hold[lifetimes.buffer] != RESIDENT)
    shown &= lowered.problem.space[lifetimes.buffer] == DEVICE
    live = np.flatnonzero((lifetimes.start <= step) & (lifetimes.stop > step) & shown)
    by_size = live[np.argsort(-lowered.problem.size[lifetimes.buffer[live]], kind="stable")][:limit]
    return [
        {
            "value": lowered.name_of_buffer(int(lifetimes.buffer[k])),
            "bytes": int(lowered.problem.size[lifetimes.buffer[k]]),
            "from_step": int(lifetimes.start[k]),
            "to_step": int(lifetimes.stop[k]) - 1,
        }
        for k in by_size
    ]


def kept_values(lowered: LoweredGraph, plan: Plan) -> list[str]:
    """Names of forward values that a backward task reads from the first run of their task."""
    lowered = lowered.under(plan.choices)
    problem, lifetimes = lowered.problem, plan.lifetimes
    first_step = first_run_step(problem, plan.order)
    backward = problem.phase[plan.order] == BACKWARD
    read = lifetimes.read_instance.index[backward[lifetimes.read_instance.row_of_entry()]]
    written = lifetimes.writer_step[read] >= 0
    read = np.unique(read[written])
    task = plan.order[lifetimes.writer_step[read]]
    from_first = (problem.phase[task] == FORWARD) & (first_step[task] == lifetimes.writer_step[read])
    buffers = np.unique(lifetimes.buffer[read[from_first]])
    return [lowered.name_of_buffer(int(b)) for b in buffers if lowered.buffer_value[b] >= 0]


def recomputed_tasks(lowered: LoweredGraph, plan: Plan) -> list[int]:
    """Tasks with two or more runs, ascending."""
    return [int(t) for t in np.flatnonzero(np.bincount(plan.order, minlength=lowered.problem.tasks) > 1)]


def choices_section(lowered: LoweredGraph, plan: Plan) -> list[dict[str, Any]]:
    """One row for each pair of bodies: its alternative, the values saved for the backward node, and their bytes."""
    under, rows = lowered.under(plan.choices), []
    table = lowered.problem.choices
    for group, choice in enumerate(plan.choices or [0] * len(lowered.groups)):
        pair = lowered.groups[group].pair
        writes = under.problem.writes[lowered.node_task[pair.forward]].tolist()
        reads = set(under.problem.reads[lowered.node_task[pair.backward]].tolist())
        saved = [b for b in writes if b in reads and under.buffer_value[b] >= 0]
        rows.append(
            {
                "forward": lowered.graph.nodes[pair.forward].name,
                "backward": lowered.graph.nodes[pair.backward].name,
                "alternative": choice,
                "of": int(table.counts()[group]),
                "saves": [under.name_of_buffer(b) for b in saved],
                "saved_bytes": int(under.problem.size[saved].sum()),
            }
        )
    return rows


def parse_choices(lowered: LoweredGraph, section: Any) -> tuple[int, ...]:
    """Vector of choices from a report's rows; 0 for a pair without a row (its planning was cancelled).

    Raises IllegalPlan unless the rows belong to the groups, in their order.
    """
    rows = section if isinstance(section, (list, tuple)) else ()
    names = [lowered.graph.nodes[group.pair.forward].name for group in lowered.groups]
    found = [(row.get("forward"), row.get("alternative")) for row in rows if isinstance(row, Mapping)]
    chosen = {name: choice for name, choice in found if isinstance(choice, int)}
    if len(chosen) != len(rows) or [name for name in names if name in chosen] != [name for name, _ in found]:
        raise IllegalPlan("plan.choices: rows do not match the pairs of bodies; re-plan the graph")
    return tuple(chosen.get(name, 0) for name in names)


def recompute_savings(lowered: LoweredGraph, plan: Plan) -> list[dict[str, Any]]:
    """One row for each recomputed node: bytes freed and seconds spent, by byte-steps freed per second, falling."""
    lowered = lowered.under(plan.choices)
    problem, lifetimes = lowered.problem, plan.lifetimes
    steps_of: dict[int, list[int]] = {}
    for step, task in enumerate(plan.order.tolist()):
        steps_of.setdefault(task, []).append(step)
    rows = []
    for task in recomputed_tasks(lowered, plan):
        freed = byte_steps = 0
        written = {int(lifetimes.buffer[k]): [int(k)] for k in lifetimes.written_instance[steps_of[task][0]]}
        for step in steps_of[task][1:]:
            for k in lifetimes.written_instance[step].tolist():
                before = written[int(lifetimes.buffer[k])][-1]
                is_kept = lifetimes.stop[k] == len(plan.order) and problem.hold[lifetimes.buffer[k]] != TO_LAST_READ
                if lifetimes.stop[k] > step + 1 or is_kept:  # read later, so the gap before this run was freed
                    size = int(problem.size[lifetimes.buffer[k]])
                    freed += size
                    byte_steps += size * max(0, step - int(lifetimes.stop[before]))
                written[int(lifetimes.buffer[k])].append(k)
        extra = (len(steps_of[task]) - 1) * int(problem.cost[task]) * problem.tick
        rows.append(
            {
                "node": lowered.name_of_task(task),
                "runs": len(steps_of[task]),
                "freed_bytes": freed,
                "byte_steps": byte_steps,
                "seconds": extra,
            }
        )
    return sorted(rows, key=lambda row: -row["byte_steps"] / (row["seconds"] or 1e-30))


def layout_section(lowered: LoweredGraph, plan: Plan, runs: NodeSequence, below: int = 0) -> dict[str, Any]:
    """Section `layout`: offset of every instance on the device and workspace; steps are entries with views.

    The first `below` bytes of the arena hold uncounted residents and are left out.
    """
    assert plan.offsets is not None and plan.arena_bytes is not None
    lowered = lowered.under(plan.choices)
    lifetimes, problem, count = plan.lifetimes, lowered.problem, len(plan.lifetimes.buffer)
    on_device = problem.space[lifetimes.buffer] == DEVICE
    shown = np.flatnonzero(on_device & (plan.offsets[:count] >= below) & (lifetimes.stop > lifetimes.start)).tolist()
    end = np.append(runs.position[1:], len(runs.nodes)) - 1 if len(runs.position) else np.zeros(0, np.int64)
    run_of = run_of_instance(plan)
    steps = np.flatnonzero(plan.offsets[count:] >= 0).tolist()
    return {
        "value": [lowered.name_of_buffer(int(lifetimes.buffer[k])) for k in shown],
        "run": [int(run_of[k]) for k in shown],
        "from_step": [int(runs.position[lifetimes.start[k]]) if lifetimes.start[k] else 0 for k in shown],
        "to_step": [int(end[lifetimes.stop[k] - 1]) for k in shown],
        "bytes": [int(problem.size[lifetimes.buffer[k]]) for k in shown],
        "offset": [int(plan.offsets[k]) - below for k in shown],
        "workspace": {
            "step": [int(runs.position[step]) for step in steps],
            "bytes": [int(problem.workspace[plan.order[step]]) for step in steps],
            "offset": [int(plan.offsets[count + step]) - below for step in steps],
        },
        "fragmentation": plan.arena_bytes / max(1, int(plan.step_bytes.max(initial=0))) - 1,
    }


def run_of_instance(plan: Plan) -> np.ndarray:
    """int64[k]: run number of each instance within its buffer; instances are sorted by (buffer, step)."""
    buffer = plan.lifetimes.buffer
    first = np.append(True, buffer[1:] != buffer[:-1]) if len(buffer) else np.zeros(0, bool)
    start = np.maximum.accumulate(np.where(first, np.arange(len(buffer)), 0))
    return np.asarray(np.arange(len(buffer)) - start)
