"""Arena repair: if the addresses of a plan exceed the budget, re-plan with extra workspace charged to tasks.

    bytes  |         +----+         No step holds more than the budget, yet b lies past it, because no hole is as
    budget |- - - - -|- b-|- -      large as b. The tasks that run while b is live are charged the excess, as if their
           |  +------+-+--+         workspace were larger. The next plan holds less during these steps, by another
           +--+--------+--- steps   order or more recomputation, and as much as before during the other steps.

The first charge is per task, which keeps the most. The later charges lower the budget for all tasks, which is more
likely to succeed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.columns import frozen
from planner.problem.plan import Candidate, Plan
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named

# Share of the budget that the alignment of addresses may take.
ALIGNMENT_SLACK = 0.001
# Share of the goal's time or iterations for each re-plan, and for the longer layout search before the first one.
SEARCH_PART = 0.125
# Share of the remaining time for each re-plan; share of the search time reserved for all of them.
TIME_LEFT_PART, RESERVED_PART = 0.3, 0.125
# Multiples of the excess charged to all tasks, tried in order until a plan fits.
UNIFORM_CHARGES = (1, 2, 4)


def repair_arena(
    formulation: Formulation,
    plan: Plan,
    layout: str,
    search: Callable[[Formulation, Candidate], Plan],
    cancel: threading.Event,
    until: float = math.inf,
) -> tuple[Plan, tuple[str, ...]]:
    """(plan with addresses, notes): `plan` if its arena fits the budget, else the best re-plan that fits.

    `search` plans a formulation, starting from a candidate. No search begins once `cancel` is set, or after `until`
    (seconds of the monotonic clock) unless the goal counts iterations. Returns the first plan if no re-plan fits.
    """
    first = within(formulation, until, 1.0, 1.0).placed(plan, layout, cancel)
    if first.score.bytes_over_budget or not fragmentation_over_budget(formulation, first) or cancel.is_set():
        return first, ()
    short = partial(within, formulation, until, SEARCH_PART, TIME_LEFT_PART)
    first = _tightest(short(), first, cancel)
    past = fragmentation_over_budget(formulation, first)
    if not past or not formulation.lowered.problem.tasks:
        return first, ()
    best = _best_repair(formulation, first, short, layout, search, cancel, until)
    if best is None:
        return first, ()
    before, after = (formulation.overhead(of.score.cost) for of in (first, best))
    excess = past / (formulation.budget_bytes or 1)
    return best, (
        f"arena repair: a plan with {before:.2%} overhead needs {excess:.1%} more than the budget after layout; "
        f"replaced by a plan with {after:.2%} overhead whose addresses fit",
    )


def _best_repair(
    formulation: Formulation,
    first: Plan,
    short: Callable[[], Formulation],
    layout: str,
    search: Callable[[Formulation, Candidate], Plan],
    cancel: threading.Event,
    until: float,
) -> Plan | None:
    """The best re-plan whose addresses fit; None if there is none. `short` is the formulation with time for one."""
    problem, past, best = formulation.lowered.problem, fragmentation_over_budget(formulation, first), None
    charges = [np.full(problem.tasks, past * times) for times in UNIFORM_CHARGES]
    for charge in (_excess_per_task(formulation, first), *charges):
        if cancel.is_set() or (formulation.goal.iterations is None and time.monotonic() >= until):
            break
        lowered = replace(formulation.lowered, problem=with_extra_workspace(problem, charge), known={})
        found = search(replace(short(), lowered=lowered), first.candidate)
        placed = short().placed(formulation.plan_of(found.candidate), layout, cancel)
        placed = _tightest(short(), placed, cancel) if fragmentation_over_budget(formulation, placed) else placed
        if placed.score.bytes_over_budget or fragmentation_over_budget(formulation, placed):
            continue
        best = placed if best is None or placed.score < best.score else best
        if charge.min() > 0:  # for all tasks: more of it costs more
            break
    return best


def may_follow(formulation: Formulation, request: Request) -> bool:
    """Whether the addresses of a plan are repaired where they exceed the budget."""
    return request.layout != "none" and bool(formulation.goal.budget_bytes) and runtime_named(request.runtime).places


def within(formulation: Formulation, until: float, part: float, left_part: float) -> Formulation:
    """The formulation with `part` of its time or iterations; at most `left_part` of the time before `until`."""
    goal = formulation.goal
    if goal.iterations is not None:
        return replace(formulation, goal=replace(goal, iterations=max(1, int(goal.iterations * part))))
    left = max(0.0, until - time.monotonic()) * left_part
    return replace(formulation, goal=replace(goal, seconds=min(goal.seconds * part, left)))


def _tightest(formulation: Formulation, placed: Plan, cancel: threading.Event) -> Plan:
    """The placed plan, or the same plan with the layout `best` if that arena is smaller."""
    longer = formulation.placed(placed, "best", cancel)
    return longer if (longer.arena_bytes or 0) < (placed.arena_bytes or 0) else placed


def arena_over_budget(formulation: Formulation, plan: Plan) -> int:
    """Bytes of the arena above the budget; 0 if within the alignment slack."""
    arena, budget = arena_bytes(formulation, plan), formulation.budget_bytes
    return 0 if not arena or not budget or arena <= budget * (1 + ALIGNMENT_SLACK) else arena - budget


def fragmentation_over_budget(formulation: Formulation, plan: Plan) -> int:
    """Bytes of the arena above the budget, less the alignment bytes at the peak, which no other plan avoids."""
    past, problem = arena_over_budget(formulation, plan), resolve_choices(formulation.lowered.problem, plan.choices)
    if not past:
        return 0
    size, workspace = (-(-column // ALIGNMENT) * ALIGNMENT for column in (problem.size, problem.workspace))
    rounded = liveness.profile(replace(problem, size=size, workspace=workspace), plan.order, plan.lifetimes)
    return max(0, past - max(0, int(rounded.max(initial=0)) - plan.score.peak_bytes))


def arena_bytes(formulation: Formulation, plan: Plan) -> int | None:
    """Arena bytes as reported; None without a layout."""
    if plan.arena_bytes is None:
        return None
    return plan.arena_bytes - formulation.resident_arena_bytes(plan) + formulation.count.reserve_bytes


def with_extra_workspace(problem: Problem, charge: np.ndarray) -> Problem:
    """The problem with `charge`, int64[n] bytes, added to the workspace of each task under every alternative."""
    table = problem.choices
    return replace(
        problem,
        workspace=frozen(problem.workspace + charge),
        choices=replace(table, workspace=frozen(table.workspace + charge[table.tasks.index])),
    )


def _excess_per_task(formulation: Formulation, plan: Plan) -> np.ndarray:
    """int64[n]: bytes of addresses above the budget while a task runs, plus the least slack of such steps."""
    assert plan.offsets is not None and plan.arena_bytes is not None
    problem, lifetimes = resolve_choices(formulation.lowered.problem, plan.choices), plan.lifetimes
    count = len(lifetimes.buffer)
    limit = plan.arena_bytes - fragmentation_over_budget(formulation, plan)
    size = np.concatenate([problem.size[lifetimes.buffer], problem.workspace[plan.order]])
    past = np.where(plan.offsets >= 0, plan.offsets + size - limit, 0)
    out = np.maximum(past[count:], 0)
    for k in np.flatnonzero(past[:count] > 0).tolist():
        during = slice(lifetimes.start[k], lifetimes.stop[k])
        out[during] = np.maximum(out[during], past[k])
    charge, at = np.zeros(problem.tasks, np.int64), np.flatnonzero(out)
    if len(at):
        spare = (formulation.goal.budget_bytes or 0) - plan.step_bytes
        np.maximum.at(charge, plan.order[at], out[at] + max(0, int(spare[at].min())))
    return charge
