"""Figures about a plan: overhead, the peak split by category, holders, what is kept and recomputed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.errors import IllegalPlan
from planner.lowering.lower import CATEGORIES, LoweredGraph
from planner.lowering.realize import NodeSequence
from planner.problem import BACKWARD, DEVICE, FORWARD, RESIDENT, TO_LAST_READ
from planner.problem.plan import Plan


@dataclass(frozen=True, slots=True)
class MemoryAccounting:
    """Which bytes are counted: what is taken off every step, what is added."""

    counts: str  # "everything" or "activations"
    excluded_bytes: int  # resident bytes left out
    reserve_bytes: int

    @classmethod
    def of(cls, lowered: LoweredGraph, counts: str, reserve_bytes: int) -> MemoryAccounting:
        return cls(counts, lowered.resident_bytes if counts == "activations" else 0, reserve_bytes)

    def counted(self, held_bytes: int) -> int:
        """What a report says where the planner holds `held_bytes`."""
        return held_bytes - self.excluded_bytes + self.reserve_bytes

    def held(self, counted_bytes: int) -> int:
        """The planner's bytes behind a reported figure; the inverse of `counted`."""
        return counted_bytes + self.excluded_bytes - self.reserve_bytes


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A proven lower bound on time and peak, with what it is valid for."""

    cost: int  # ticks, within the budget where there is one
    single_run_cost: int  # ticks of everything once, whatever the budget
    peak_bytes: int  # the planner's bytes
    kind: str
    order: str  # "free" or "given"
    proof: str  # "certified" or "solver"
    binding_task: int  # the task that sets the peak bound; -1: what is held at the end does
    claims: tuple[dict[str, Any], ...] = ()  # of the peak and of the cost, each with its certificate


def overhead(cost: int, baseline_cost: int) -> float:
    """Extra time over the baseline: 0.034 = 3.4%."""
    return cost / baseline_cost - 1 if baseline_cost else 0.0


def peak_by(lowered: LoweredGraph, plan: Plan, count: MemoryAccounting) -> dict[str, int]:
    """The bytes of the peak step, split by what they are for."""
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
    """Bytes live at `step` per category; an output that takes over is counted by what the step adds."""
    lives = plan.lifetimes
    live = (lives.start <= step) & (lives.stop > step) & (lowered.problem.space[lives.buffer] == DEVICE)
    live &= ~((lives.start == step) & (lives.taken_from >= 0))
    buffers = lives.buffer[live]
    held = np.zeros(len(CATEGORIES), np.int64)
    np.add.at(held, lowered.category[buffers], lowered.problem.size[buffers])
    return [int(x) for x in held]


def peak_holders(lowered: LoweredGraph, plan: Plan, most: int = 10, residents: bool = True) -> list[dict[str, Any]]:
    """The largest values live at the peak, with how long each is held; with or without those held all the time."""
    if not len(plan.step_bytes):
        return []
    lowered = lowered.under(plan.choices)
    step, lives = int(np.argmax(plan.step_bytes)), plan.lifetimes
    shown = residents | (lowered.problem.hold[lives.buffer] != RESIDENT)
    live = np.flatnonzero((lives.start <= step) & (lives.stop > step) & shown)
    by_size = live[np.argsort(-lowered.problem.size[lives.buffer[live]], kind="stable")][:most]
    return [
        {
            "value": lowered.name_of_buffer(int(lives.buffer[k])),
            "bytes": int(lowered.problem.size[lives.buffer[k]]),
            "from_step": int(lives.start[k]),
            "to_step": int(lives.stop[k]) - 1,
        }
        for k in by_size
    ]


def kept_values(lowered: LoweredGraph, plan: Plan) -> list[str]:
    """Forward values that a backward task reads from their first run."""
    lowered = lowered.under(plan.choices)
    problem, lives = lowered.problem, plan.lifetimes
    first_step = np.full(problem.tasks, -1, np.int64)
    first_step[plan.order[::-1]] = np.arange(len(plan.order))[::-1]
    backward = problem.phase[plan.order] == BACKWARD
    read = lives.read_instance.index[backward[lives.read_instance.row_of_entry()]]
    written = lives.writer_step[read] >= 0
    read = np.unique(read[written])
    task = plan.order[lives.writer_step[read]]
    from_first = (problem.phase[task] == FORWARD) & (first_step[task] == lives.writer_step[read])
    buffers = np.unique(lives.buffer[read[from_first]])
    return [lowered.name_of_buffer(int(b)) for b in buffers if lowered.buffer_value[b] >= 0]


def recomputed_tasks(lowered: LoweredGraph, plan: Plan) -> list[int]:
    """Tasks with two or more runs, ascending."""
    return [int(t) for t in np.flatnonzero(np.bincount(plan.order, minlength=lowered.problem.tasks) > 1)]


def choices_section(lowered: LoweredGraph, plan: Plan) -> list[dict[str, Any]]:
    """What each pair of bodies saves: which alternative, its bytes over all trips, and their values."""
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
    """The vector of choices a report's rows say; a pair without a row stands as it is, as after a cancel.

    Raises IllegalPlan when rows are not those of the groups, in their order.
    """
    rows = section if isinstance(section, (list, tuple)) else ()
    names = [lowered.graph.nodes[group.pair.forward].name for group in lowered.groups]
    found = [(row.get("forward"), row.get("alternative")) for row in rows if isinstance(row, Mapping)]
    chosen = {name: choice for name, choice in found if isinstance(choice, int)}
    if len(chosen) != len(rows) or [name for name in names if name in chosen] != [name for name, _ in found]:
        raise IllegalPlan("plan.choices: not one alternative for each pair of bodies; plan the graph again")
    return tuple(chosen.get(name, 0) for name in names)


def recompute_savings(lowered: LoweredGraph, plan: Plan) -> list[dict[str, Any]]:
    """Per recomputed node: what its repeats free and what they cost, the best bargain first."""
    lowered = lowered.under(plan.choices)
    problem, lives = lowered.problem, plan.lifetimes
    steps_of: dict[int, list[int]] = {}
    for step, task in enumerate(plan.order.tolist()):
        steps_of.setdefault(task, []).append(step)
    rows = []
    for task in recomputed_tasks(lowered, plan):
        freed = byte_steps = 0
        written = {int(lives.buffer[k]): [int(k)] for k in lives.written_instance[steps_of[task][0]]}
        for step in steps_of[task][1:]:
            for k in lives.written_instance[step].tolist():
                before = written[int(lives.buffer[k])][-1]
                is_kept = lives.stop[k] == len(plan.order) and problem.hold[lives.buffer[k]] != TO_LAST_READ
                if lives.stop[k] > step + 1 or is_kept:  # of use again, so the gap before it was freed for it
                    size = int(problem.size[lives.buffer[k]])
                    freed += size
                    byte_steps += size * max(0, step - int(lives.stop[before]))
                written[int(lives.buffer[k])].append(k)
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
    """Where every instance and workspace lies, in entries of the whole sequence (views included).

    The first `below` bytes of the arena are residents that are not counted; they are left out.
    """
    assert plan.offsets is not None and plan.arena_bytes is not None
    lowered = lowered.under(plan.choices)
    lives, problem, count = plan.lifetimes, lowered.problem, len(plan.lifetimes.buffer)
    shown = np.flatnonzero((plan.offsets[:count] >= below) & (lives.stop > lives.start)).tolist()
    end = np.append(runs.position[1:], len(runs.nodes)) - 1 if len(runs.position) else np.zeros(0, np.int64)
    run_of = run_of_instance(plan)
    steps = np.flatnonzero(plan.offsets[count:] >= 0).tolist()
    return {
        "value": [lowered.name_of_buffer(int(lives.buffer[k])) for k in shown],
        "run": [int(run_of[k]) for k in shown],
        "from_step": [int(runs.position[lives.start[k]]) if lives.start[k] else 0 for k in shown],
        "to_step": [int(end[lives.stop[k] - 1]) for k in shown],
        "bytes": [int(problem.size[lives.buffer[k]]) for k in shown],
        "offset": [int(plan.offsets[k]) - below for k in shown],
        "workspace": {
            "step": [int(runs.position[step]) for step in steps],
            "bytes": [int(problem.workspace[plan.order[step]]) for step in steps],
            "offset": [int(plan.offsets[count + step]) - below for step in steps],
        },
        "fragmentation": plan.arena_bytes / max(1, int(plan.step_bytes.max(initial=0))) - 1,
    }


def run_of_instance(plan: Plan) -> np.ndarray:
    """int64[k]: which write of its buffer each instance is; instances come sorted by (buffer, step)."""
    buffer = plan.lifetimes.buffer
    first = np.append(True, buffer[1:] != buffer[:-1]) if len(buffer) else np.zeros(0, bool)
    start = np.maximum.accumulate(np.where(first, np.arange(len(buffer)), 0))
    return np.asarray(np.arange(len(buffer)) - start)
