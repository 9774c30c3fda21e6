"""Walks: continue to anneal a plan with charges to all tasks, so that its peak falls by what its addresses waste.

First the same runs are reordered, then recomputation changes too. Once addresses fit, the charge is bisected back.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from planner.formulation.formulation import Formulation
from planner.pipeline.arena_repair import flat
from planner.pipeline.arena_repair.attempts import PLAN_ITERATIONS, Attempts
from planner.pipeline.arena_repair.charges import charged_alike
from planner.pipeline.arena_repair.shares import LEAST_PART, MAX_IDLE, MIN_CHARGE, QUICK_PART, WALK_SHARES
from planner.problem.plan import Plan
from planner.search import continuation

#: A plan whose addresses fit is walked on from for the budget rounded up to the alignment, if that adds such a share of
#: it; by the clock up to so many times.
MIN_ROUNDED, MAX_FILLED = 1e-4, 4
#: Share of the time left to such walks for each of them.
FILL_PART = 0.7
#: The first charge, as a share of the budget, where the addresses of no flat order fit.
FLAT_CHARGE = 0.03


def fill_last_unit(attempts: Attempts, first: Plan) -> None:
    """Offer plans for the budget rounded up, whose addresses fit if what ends the arena is not rounded up.

    One plan, by the clock up to MAX_FILLED, until the addresses of one fit.
    """
    raised, formulation = attempts.raised, attempts.formulation
    added, proven = (raised.goal.budget_bytes or 0) - attempts.budget, first.score.cost <= formulation.bound.cost
    if attempts.planner != "auto" or proven or added < MIN_ROUNDED * attempts.budget:
        return
    attempts.offer(first)
    if not attempts.walks_by_clock:
        _fill(attempts, first, 0)
        return
    until, known = attempts.until - (1 - attempts.shares.fill) * attempts.seconds_left(), attempts.best
    for number in range(MAX_FILLED):
        with attempts.limited(until=until):
            if attempts.best is not known or attempts.is_over(first):
                return
            _fill(attempts, first, number)


def _fill(attempts: Attempts, first: Plan, number: int) -> None:
    """Offer the plan of the walk of that number for the budget rounded up."""
    raised = attempts.raised
    goal = replace(raised.goal, seed=raised.goal.seed + number)
    with attempts.monitored(attempts.formulation, FILL_PART, PLAN_ITERATIONS) as monitor:
        found = continuation.walk_on(raised.lowered.problem, goal, first.candidate, monitor)
    attempts.offer(attempts.swept(found))


def walk_on(attempts: Attempts, first: Plan) -> None:
    """Walk on from a plan in the time left, if a clock limits that, for plans whose addresses fit."""
    if attempts.walks_by_clock and not attempts.is_large:
        attempts.tried(first, pack=False)
        with attempts.limited(shares=WALK_SHARES):
            walk_down(attempts, first)


def walk_down(attempts: Attempts, first: Plan) -> None:
    """Charge all tasks what the addresses of a plan waste, and walk on; once they fit, bisect the charge."""
    start = first if attempts.best is None else attempts.best
    missed, charge, nearest = 0, _first_charge(attempts, start), MIN_CHARGE * attempts.budget
    fitting = None if attempts.best is None else charge
    until, left, idle = attempts.until, attempts.seconds_left(), 0
    for number in itertools.count(1):
        kept = QUICK_PART if fitting is None else LEAST_PART
        with attempts.limited(until=until - kept * left):
            if attempts.is_over(first) or idle == MAX_IDLE:
                break
            before = attempts.best
            found = _walked(attempts, start, charge, number, reorder=fitting is None)
        over = attempts.over(found)
        if not over:
            fitting, start = charge, attempts.best or found
        elif fitting is None:
            missed, start = charge, found
            charge = max(attempts.wasted(found), charge) + over
            continue
        else:
            missed, fitting = charge, max(fitting, charge + over)
        idle = 0 if attempts.best is not before else idle + 1
        charge = fitting if fitting - missed < nearest else (missed + fitting) // 2


def _first_charge(attempts: Attempts, start: Plan) -> int:
    """Bytes that the addresses of `start` waste; after flat orders that miss the budget, at least FLAT_CHARGE of it."""
    wasted = attempts.wasted(start)
    if attempts.best is not None or not flat.may_reorder(attempts):
        return wasted
    possible = max(0, attempts.budget - attempts.rounded.bound.peak_bytes)
    return max(wasted, min(possible, int(FLAT_CHARGE * attempts.budget)))


def _walked(attempts: Attempts, start: Plan, charge: int, number: int, reorder: bool) -> Plan:
    """A plan by the walk of that number, in a flat order or packed if its addresses would miss the budget else."""
    charged = charged_alike(attempts.rounded, charge)
    seeded = replace(charged, goal=replace(charged.goal, seed=charged.goal.seed + number))
    plan = walk(attempts, seeded, start, reorder)
    flattened = flat.with_flat_order(attempts, plan)
    return attempts.tried(plan) if flattened is plan else flattened


def walk(attempts: Attempts, formulation: Formulation, start: Plan, reorder: bool = True) -> Plan:
    """Plan with addresses, found from `start` for a charged formulation: the same runs reordered, if those fit."""
    problem, goal, candidate = formulation.lowered.problem, formulation.goal, start.candidate
    if reorder:  # its end by the clock is not noted: a walk follows
        monitor = attempts.monitor(formulation, attempts.shares.order, PLAN_ITERATIONS)
        candidate = continuation.reordered(problem, goal, candidate, monitor)
    if candidate.order is not start.order:
        found = attempts.tried(attempts.swept(candidate))
        if not attempts.over(found):
            return found
    with attempts.monitored(formulation, attempts.shares.walk, PLAN_ITERATIONS) as monitor:
        candidate = continuation.walk_on(problem, goal, candidate, monitor)
    return attempts.swept(candidate)
