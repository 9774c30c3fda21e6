"""A plan whose addresses fit as well: where they do not, a search with a tighter budget finds another one.

    bytes  |         +----+         No step holds more than the budget, yet b lies past it, as no hole is as large
    budget |- - - - -|- b-|- -      as b. So the tasks that run while it does are charged what sticks out, as if
           |  +------+-+--+         their workspace were larger: the next plan holds less during these steps, by
           +--+--------+--- steps   another order or more recomputation, and as much as before during the others.

That keeps most where it fits. The budget is also lowered for all tasks, which is the surer way, and more than once.
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
from planner.formulation.metrics import overhead
from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Plan
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named
from planner.search.portfolio import Candidate

# Part of the budget that the alignment of addresses may take.
ALIGNMENT_SLACK = 0.001
# The part of the goal's time or iterations that each search has at most, and the longer search for addresses before.
SEARCH_PART = 0.125
# The part of what is left of the time that each of them has at most, and what is kept for all of them.
TIME_LEFT_PART, RESERVED_PART = 0.3, 0.125
# By how often what sticks out the budget is lowered for all tasks, until a plan fits.
UNIFORM_CHARGES = (1, 2, 4)


def repair_arena(
    question: Formulation,
    plan: Plan,
    layout: str,
    search: Callable[[Formulation, Candidate], Plan],
    cancel: threading.Event,
    until: float = math.inf,
) -> tuple[Plan, tuple[str, ...]]:
    """The plan at addresses; where these do not fit the best plan found whose do, and what it took, in words.

    `search` gives a plan of a question, from a given one on; none begins once `cancel` is set, nor after `until`, of
    the monotonic clock, where no iterations are counted instead. Where none fits the first plan comes back.
    """
    first = _within(question, until, 1.0, 1.0).placed(plan, layout, cancel)
    if first.score.bytes_over_budget or not fragmentation_over_budget(question, first) or cancel.is_set():
        return first, ()
    problem = question.lowered.problem
    short = partial(_within, question, until, SEARCH_PART, TIME_LEFT_PART)
    first = _tightest(short(), first, cancel)
    past = fragmentation_over_budget(question, first)
    if not past or not problem.tasks:
        return first, ()
    best: Plan | None = None
    for charge in (
        _excess_per_task(question, first),
        *(np.full(problem.tasks, past * times) for times in UNIFORM_CHARGES),
    ):
        if cancel.is_set() or (question.goal.iterations is None and time.monotonic() >= until):
            break
        tight = replace(
            short(), lowered=replace(question.lowered, problem=with_extra_workspace(problem, charge), known={})
        )
        found = search(tight, Candidate(first.order, first.planner, first.choices))
        placed = short().placed(question.evaluated(found.order, found.planner, found.choices), layout, cancel)
        placed = _tightest(short(), placed, cancel) if fragmentation_over_budget(question, placed) else placed
        if placed.score.bytes_over_budget or fragmentation_over_budget(question, placed):
            continue
        best = placed if best is None or placed.score < best.score else best
        if charge.min() > 0:  # for all tasks: more of it costs more
            break
    if best is None:
        return first, ()
    before, after = (overhead(of.score.cost, question.baseline_cost) for of in (first, best))
    more = past / (question.budget_bytes or 1)
    return best, (
        f"a plan at {before:.2%} extra time whose addresses need {more:.1%} more than the budget was given up for one "
        f"at {after:.2%} whose addresses fit",
    )


def with_repair_time_reserved(question: Formulation, request: Request) -> Formulation:
    """The question with less search time where an arena repair may follow and the search would take it all."""
    if request.layout == "none" or not question.goal.budget_bytes or not runtime_named(request.runtime).places:
        return question
    return replace(question, goal=replace(question.goal, seconds=question.goal.seconds * (1 - RESERVED_PART)))


def _within(question: Formulation, until: float, part: float, left_part: float) -> Formulation:
    """The question with that part of its time or iterations, and of what is left of the time until then."""
    goal = question.goal
    if goal.iterations is not None:
        return replace(question, goal=replace(goal, iterations=max(1, int(goal.iterations * part))))
    left = max(0.0, until - time.monotonic()) * left_part
    return replace(question, goal=replace(goal, seconds=min(goal.seconds * part, left)))


def _tightest(question: Formulation, placed: Plan, cancel: threading.Event) -> Plan:
    """The plan at its addresses, or at those of a longer search where they need less."""
    again = question.placed(placed, "best", cancel)
    return again if (again.arena_bytes or 0) < (placed.arena_bytes or 0) else placed


def arena_over_budget(question: Formulation, plan: Plan) -> int:
    """Bytes that the arena needs more than the budget, when it is more than rounding to addresses."""
    arena, budget = arena_bytes(question, plan), question.budget_bytes
    return 0 if not arena or not budget or arena <= budget * (1 + ALIGNMENT_SLACK) else arena - budget


def fragmentation_over_budget(question: Formulation, plan: Plan) -> int:
    """The same without what rounding to addresses takes at the peak, which no other plan takes less of."""
    past, problem = arena_over_budget(question, plan), resolve_choices(question.lowered.problem, plan.choices)
    if not past:
        return 0
    size, workspace = (-(-column // ALIGNMENT) * ALIGNMENT for column in (problem.size, problem.workspace))
    rounded = liveness.profile(replace(problem, size=size, workspace=workspace), plan.order, plan.lifetimes)
    return max(0, past - max(0, int(rounded.max(initial=0)) - plan.score.peak_bytes))


def arena_bytes(question: Formulation, plan: Plan) -> int | None:
    """The arena as reports count it; None without a layout."""
    if plan.arena_bytes is None:
        return None
    return plan.arena_bytes - question.resident_arena_bytes(plan) + question.count.reserve_bytes


def with_extra_workspace(problem: Problem, charge: np.ndarray) -> Problem:
    """The problem with the workspace of each task larger by its charge, int64[n] bytes, whatever is chosen."""
    table = problem.choices
    return replace(
        problem,
        workspace=_frozen(problem.workspace + charge),
        choices=replace(table, workspace=_frozen(table.workspace + charge[table.tasks.index])),
    )


def _excess_per_task(question: Formulation, plan: Plan) -> np.ndarray:
    """int64[n]: by how much addresses pass the budget while a task runs, and what its steps have to spare at least."""
    assert plan.offsets is not None and plan.arena_bytes is not None
    problem, lives = resolve_choices(question.lowered.problem, plan.choices), plan.lifetimes
    count = len(lives.buffer)
    limit = plan.arena_bytes - fragmentation_over_budget(question, plan)
    size = np.concatenate([problem.size[lives.buffer], problem.workspace[plan.order]])
    past = np.where(plan.offsets >= 0, plan.offsets + size - limit, 0)
    out = np.maximum(past[count:], 0)
    for k in np.flatnonzero(past[:count] > 0).tolist():
        during = slice(lives.start[k], lives.stop[k])
        out[during] = np.maximum(out[during], past[k])
    more, at = np.zeros(problem.tasks, np.int64), np.flatnonzero(out)
    if len(at):
        spare = (question.goal.budget_bytes or 0) - plan.step_bytes
        np.maximum.at(more, plan.order[at], out[at] + max(0, int(spare[at].min())))
    return more


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
