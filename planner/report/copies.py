"""What a report says of engines beside compute, for copies and collectives: sums, and when each entry runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.formulation.formulation import Formulation
from planner.lowering.realize import NodeSequence
from planner.problem import COMMUNICATION, COMPUTE, HOST
from planner.problem.plan import Plan

#: Names of the kinds of entries.
COMPUTE_ENGINE, OFFLOAD_ENGINE, FETCH_ENGINE, COLLECTIVE_ENGINE = "compute", "to_host", "from_host", "communication"


def copies_section(formulation: Formulation, plan: Plan) -> dict[str, Any]:
    """Section `copies`."""
    problem, lives = formulation.lowered.under(plan.choices).problem, plan.lifetimes
    tasks, compute = formulation.lowered.source_tasks, _ticks(formulation, plan, COMPUTE)
    written = lives.buffer[lives.written_instance.gather(np.flatnonzero(plan.order >= tasks))]
    to_host = int(problem.size[written[problem.space[written] == HOST]].sum())
    return {
        "compute_seconds": compute * problem.tick,
        "waiting_seconds": (plan.score.cost - compute) * problem.tick,
        "to_host_bytes": to_host,
        "from_host_bytes": int(problem.size[written].sum()) - to_host,
        "host_peak_bytes": 0 if plan.schedule is None else int(plan.schedule.host_bytes.max(initial=0)),
        "host_arena_bytes": plan.host_arena_bytes,
    }


def overlap_section(formulation: Formulation, plan: Plan) -> dict[str, Any]:
    """Section `overlap`, of a plan whose collectives run beside compute."""
    tick = formulation.lowered.problem.tick
    return {
        "communication_seconds": _ticks(formulation, plan, COMMUNICATION) * tick,
        **{
            f"{prefix}waiting_seconds": (each.score.cost - _ticks(formulation, each, COMPUTE)) * tick
            for prefix, each in (("", plan), ("baseline_", formulation.baseline))
        },
    }


def _ticks(formulation: Formulation, plan: Plan, engine: int) -> int:
    """Sum of the ticks that a plan takes on an engine; collectives in line with compute count as compute."""
    problem = formulation.lowered.under(plan.choices).problem
    engines = problem.engine[plan.order]
    if not formulation.overlaps:
        engines = np.where(engines == COMMUNICATION, COMPUTE, engines)
    return int(problem.cost[plan.order[engines == engine]].sum())


def engine_rows(formulation: Formulation, plan: Plan, runs: NodeSequence) -> dict[str, Any]:
    """Fields of section `timeline` for engines side by side: engine and times of each entry, host bytes."""
    if plan.schedule is None:
        return {}
    tick = formulation.lowered.problem.tick
    # An entry that is a view stands at the end of the step before it.
    step = np.searchsorted(runs.position, np.arange(len(runs.nodes)), side="right") - 1
    is_step = np.isin(np.arange(len(runs.nodes)), runs.position)
    start, end = (np.append(column, 0) for column in (plan.schedule.start, plan.schedule.end))
    return {
        "engines": {
            "engine": [
                _engine(formulation, int(plan.order[s])) if own else COMPUTE_ENGINE
                for s, own in zip(step.tolist(), is_step.tolist(), strict=True)
            ],
            "start": (np.where(is_step, start[step], end[step]) * tick).tolist(),
            "end": (end[step] * tick).tolist(),
        },
        "host_step_bytes": np.append(plan.schedule.host_bytes, 0)[step].tolist(),
    }


def _engine(formulation: Formulation, task: int) -> str:
    problem = formulation.lowered.problem
    if problem.engine[task] in (COMPUTE, COMMUNICATION):
        return COLLECTIVE_ENGINE if formulation.overlaps and problem.engine[task] == COMMUNICATION else COMPUTE_ENGINE
    return OFFLOAD_ENGINE if problem.space[problem.writes[task][0]] == HOST else FETCH_ENGINE
