"""Trimming: drop recomputations of a plan whose addresses fit, as long as they still fit then.

Charges lower the budget for many steps at once, so that the plans found recompute more than their addresses need.
Without a recomputation its values are held since their last use. What is held longer now and what lies in its way get
other addresses, the rest stays, which takes little time.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

import numpy as np

from planner.pipeline.arena_repair.attempts import Attempts
from planner.problem import liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Plan
from planner.problem.recompute import is_first_run
from planner.search.unread_runs import without_steps

#: Moves of a packing repair for each storage: of the first passes, and the next after a pass that dropped nothing.
MOVES = (2, 8, 32)
#: Under an iteration limit, groups tried times the square of the tasks, with which the time of a try grows.
MAX_TRIED = 500_000_000


def trim(attempts: Attempts, first: Plan) -> None:
    """Drop recomputations of the best plan that its addresses do not need, until the longest repairs allow no more.

    Ends earlier where `attempts` do. `first` is the plan that is repaired. Plans on engines side by side and those of
    large graphs stay as they are: a copy brings what is read next, and each try in a large graph takes long.
    """
    if attempts.formulation.has_engines or attempts.is_large:
        return
    by_clock = attempts.formulation.goal.iterations is None
    left = math.inf if by_clock else MAX_TRIED // max(1, attempts.tasks**2)
    for moves in MOVES:
        while attempts.best is not None and left > 0:
            begin = attempts.best
            left -= _trim_once(attempts, first, begin, moves, left)
            if attempts.best is begin:
                break
    attempts.stopped_by_clock |= by_clock and attempts.best is not None and time.monotonic() >= attempts.until


def _trim_once(attempts: Attempts, first: Plan, begin: Plan, moves: int, tries: float) -> int:
    """Try to drop groups of the best plan's recomputations, and the halves of those that stay; returns groups tried."""
    formulation, order = attempts.formulation, begin.order
    raised = attempts.raised.goal.budget_bytes or 0
    problem = resolve_choices(attempts.raised.lowered.problem, begin.choices)
    repeats = np.flatnonzero(~is_first_run(problem, order))
    groups = [repeats[np.argsort(problem.cost[order[repeats]], kind="stable")]]  # the last are tried first
    known, kept, tried = begin, np.ones(len(order), bool), 0
    while groups and tried < tries and not attempts.is_over(first):
        group = groups.pop()
        group = group[kept[group]]
        if not len(group):
            continue
        tried += 1
        shorter = without_steps(problem, order, kept, group)
        if liveness.peak(problem, order[shorter]) <= raised:
            plan = formulation.plan_of(replace(known.candidate, order=order[shorter]))
            origin, stop = np.flatnonzero(shorter[kept]), partial(attempts.is_over, first)
            found = formulation.packed_from(plan, known, origin, moves, stop)
            if found is not None and attempts.offer(found, pack=False):
                known, kept = found, shorter
                continue
        if len(group) > 1:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
    return tried
