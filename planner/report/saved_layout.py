"""From the layout section of a saved report to the offsets of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from planner.errors import IllegalPlan
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.metrics import layout_section, run_of_instance
from planner.lowering.realize import NodeSequence
from planner.problem import RESIDENT
from planner.problem.plan import Plan


def with_layout(
    formulation: Formulation, plan: Plan, runs: NodeSequence, section: Mapping[str, Any], arena_bytes: int
) -> Plan:
    """The plan with the addresses of a report's layout. Raises IllegalPlan if the section contradicts the plan.

    Uncounted residents have no address in a report; they are placed below the rest, one after the other.
    """
    lowered, lifetimes = formulation.lowered, plan.lifetimes
    problem, count = lowered.problem, len(plan.lifetimes.buffer)
    offsets = np.full(count + len(plan.order), -1, np.int64)
    below = 0
    if formulation.count.excluded_bytes:
        for k in np.flatnonzero(
            (problem.hold[lifetimes.buffer] == RESIDENT) & (lifetimes.stop > lifetimes.start)
        ).tolist():
            offsets[k] = below
            below += -(-int(problem.size[lifetimes.buffer[k]]) // ALIGNMENT) * ALIGNMENT
    run_of = run_of_instance(plan)
    instance = {(lowered.name_of_buffer(int(lifetimes.buffer[k])), int(run_of[k])): k for k in range(count)}
    for value, run, offset in zip(section["value"], section["run"], section["offset"], strict=True):
        if (value, run) not in instance:
            raise IllegalPlan(f"layout: {value!r} has no run {run} in this plan")
        offsets[instance[value, run]] = offset + below
    step_at = {int(place): step for step, place in enumerate(runs.position)}
    workspace = section["workspace"]
    for place, offset in zip(workspace["step"], workspace["offset"], strict=True):
        if place not in step_at:
            raise IllegalPlan(f"layout.workspace: entry {place} of the sequence is not a step with a workspace")
        offsets[count + step_at[place]] = offset + below
    total_bytes = arena_bytes - formulation.count.reserve_bytes + below
    placed = replace(plan, offsets=offsets, arena_bytes=total_bytes)
    if formulation.has_engines:
        placed = formulation.with_host_addresses(placed)
    derived = layout_section(lowered, placed, runs, below)
    for name in ("from_step", "to_step", "bytes", "workspace"):
        if derived[name] != section[name]:
            raise IllegalPlan(f"layout.{name}: differs from the lifetimes of this order; compute the layout again")
    return placed
