"""Charges of arena repair: bytes added to the workspace of tasks, so that a search holds less while they run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.formulation.formulation import Formulation
from planner.problem import Problem, liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.columns import frozen
from planner.problem.plan import Plan


def with_extra_workspace(problem: Problem, charge: np.ndarray) -> Problem:
    """The problem with `charge`, int64[n] bytes, added to the workspace of each task under every alternative."""
    table = problem.choices
    return replace(
        problem,
        workspace=frozen(problem.workspace + charge),
        choices=replace(table, workspace=frozen(table.workspace + charge[table.tasks.index])),
    )


def charged(rounded: Formulation, charge: np.ndarray) -> Formulation:
    """The formulation to search with `charge`, int64[n] bytes, charged to each task."""
    problem = with_extra_workspace(rounded.lowered.problem, charge)
    return replace(rounded, lowered=replace(rounded.lowered, problem=problem, known={}))


def charged_alike(rounded: Formulation, charge: int) -> Formulation:
    """The formulation to search with `charge` bytes charged to every task: a budget lower by as much."""
    return charged(rounded, np.full(rounded.lowered.problem.tasks, charge))


def with_excess(formulation: Formulation, rounded: Formulation, plan: Plan, charge: np.ndarray) -> np.ndarray:
    """The charge, and per task the bytes of addresses above the budget while it runs, plus the least slack."""
    assert plan.offsets is not None and plan.arena_bytes is not None
    problem, lifetimes = resolve_choices(rounded.lowered.problem, plan.choices), plan.lifetimes
    count = len(lifetimes.buffer)
    limit = plan.arena_bytes - formulation.bytes_over_budget(plan)
    size = np.concatenate([problem.size[lifetimes.buffer], problem.workspace[plan.order]])
    past = np.where(plan.offsets >= 0, plan.offsets + size - limit, 0)
    out = np.maximum(past[count:], 0)
    for k in np.flatnonzero(past[:count] > 0).tolist():
        during = slice(lifetimes.start[k], lifetimes.stop[k])
        out[during] = np.maximum(out[during], past[k])
    more, at = charge.copy(), np.flatnonzero(out)
    if len(at):
        held = liveness.profile(problem, plan.order) + charge[plan.order]
        slack = max(0, (rounded.goal.budget_bytes or 0) - int(held[at].max()))
        np.maximum.at(more, plan.order[at], charge[plan.order[at]] + out[at] + slack)
    return more
