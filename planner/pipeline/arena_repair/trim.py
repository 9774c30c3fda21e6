"""Trimming: drop recomputations of a plan whose addresses fit, as long as they still fit then.

Charges lower the budget for many steps at once, so that the plans found recompute more than their addresses need.
Without a recomputation its values are held since their last use. What is held longer now and what lies in its way get
other addresses, the rest stays, which takes little time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.pipeline.arena_repair.attempts import Attempts
from planner.problem import liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Plan
from planner.problem.recompute import is_first_run
from planner.search.unread_runs import without_steps

#: Moves of a packing repair for each storage: in the first pass, and after each pass that dropped nothing.
MOVES = (2, 8, 32)
#: Tasks times groups tried, over all passes: a group of a large graph takes long.
MAX_TRIED = 500_000


def trim(attempts: Attempts, first: Plan) -> None:
    """Drop recomputations of the best plan that its addresses do not need, until no limit of `attempts` allows more.

    `first` is the plan that is repaired. With copies, plans stay as they are.
    """
    left = MAX_TRIED // max(1, attempts.tasks)
    for moves in () if attempts.formulation.has_engines else MOVES:
        while attempts.best is not None and left > 0:
            begin = attempts.best
            left -= _trim_once(attempts, first, begin, moves, left)
            if attempts.best is begin:
                break


def _trim_once(attempts: Attempts, first: Plan, begin: Plan, moves: int, tries: int) -> int:
    """Try to drop groups of the best plan's recomputations, and the halves of those that stay; returns groups tried."""
    formulation, order = attempts.formulation, begin.order
    raised = attempts.raised.goal.budget_bytes or 0
    problem = resolve_choices(attempts.raised.lowered.problem, begin.choices)
    repeats = np.flatnonzero(~is_first_run(problem, order))
    groups = [repeats[np.argsort(problem.cost[order[repeats]], kind="stable")]]  # the last are tried first
    kept, tried = np.ones(len(order), bool), 0
    while groups and tried < tries and not attempts.is_over(first):
        group = groups.pop()
        group = group[kept[group]]
        if not len(group):
            continue
        tried += 1
        shorter = without_steps(problem, order, kept, group)
        if liveness.peak(problem, order[shorter]) <= raised:
            known = attempts.best or begin
            plan = formulation.plan_of(replace(known.candidate, order=order[shorter]))
            found = formulation.packed_from(plan, known, np.flatnonzero(shorter[kept]), moves)
            if found is not None and attempts.offer(found, pack=False):
                kept = shorter
                continue
        if len(group) > 1:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
    return tried
