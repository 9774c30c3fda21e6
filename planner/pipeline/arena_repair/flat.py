"""Flat plans: these hold less near the budget, where holes between addresses do harm.

With a free order, the same runs are rearranged first. Then other recomputation is searched, and with a free order
other places of first runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from planner.pipeline.arena_repair.attempts import PLAN_ITERATIONS, Attempts, beats
from planner.pipeline.arena_repair.shares import MAX_IDLE, QUICK_PART
from planner.pipeline.arena_repair.targets import FREE_TIGHTER, TIGHTER, NearTargets
from planner.problem.plan import Plan
from planner.search import continuation
from planner.search.improver_beside import cores

#: Orders of the same runs that are tried by the clock where the addresses of the first plan exceed the budget.
FLAT_TRIES = 2
#: Shares of the time left for each walk to a plan that holds less near the budget and for its packing; and share left
#: for what follows these, once the addresses of a plan fit.
FLAT_WALK, FLAT_PACK, FLAT_REST = 0.15, 0.1, 0.1
#: With a free order, pairs of such walks without a better plan after which other walks follow, once addresses fit.
FREE_IDLE = 1
#: A plan that holds more near the budget than so many times the budget, summed over steps, is not packed at first: no
#: packing would fit.
MAX_PACKED_NEAR = 4


def may_reorder(attempts: Attempts) -> bool:
    """Whether orders of the same runs are tried."""
    return not attempts.rounded.goal.order_is_given and not attempts.walks_are_slow


def may_recompute(attempts: Attempts) -> bool:
    """Whether recomputation is searched that holds less near the budget."""
    return not attempts.walks_are_slow


def near_bytes(attempts: Attempts, plan: Plan) -> int:
    """Bytes that a plan holds near the budget, summed over steps."""
    return continuation.near_bytes(attempts.rounded.lowered.problem, attempts.rounded.goal, plan.candidate)


def is_hopeless(attempts: Attempts, plan: Plan) -> bool:
    """Whether a plan holds so much near the budget that no packing would fit."""
    return may_recompute(attempts) and near_bytes(attempts, plan) > MAX_PACKED_NEAR * attempts.budget


def with_flat_order(attempts: Attempts, plan: Plan, tries: int = 1) -> Plan:
    """The plan, or the same runs in an order that holds less near the budget, if the arena is smaller then."""
    rounded, goal = attempts.rounded, attempts.rounded.goal
    for number in range(tries if may_reorder(attempts) else 0):
        if not attempts.over(plan) or not attempts.is_better(plan) or attempts.is_over(plan):
            break
        seeded = replace(goal, seed=goal.seed + number)
        with attempts.monitored(rounded, attempts.shares.flat, PLAN_ITERATIONS) as monitor:
            flat = continuation.flattened(rounded.lowered.problem, seeded, plan.candidate, monitor)
        if flat.order is not plan.order:
            plan = min(plan, attempts.tried(attempts.swept(flat)), key=attempts.over)
    return plan


def recompute_flat(attempts: Attempts, first: Plan) -> bool:
    """Walk on to plans that hold less near the budget until the addresses of one fit, then to cheaper ones.

    Only if no addresses fit yet. Returns whether its time is over, rather than walks that found nothing better.
    """
    if attempts.best is not None or not may_recompute(attempts):
        return False
    is_free = not attempts.rounded.goal.order_is_given
    tighter = FREE_TIGHTER if is_free else TIGHTER
    targets = NearTargets.of(near_bytes(attempts, first), attempts.budget, tighter)
    until, left = attempts.until, attempts.seconds_left()
    loose, idle, patience = first, 0, MAX_IDLE
    for number in itertools.count():
        kept = QUICK_PART if attempts.best is None else FLAT_REST
        with attempts.limited(until=until - kept * left):
            now, before = attempts.seconds_left(), attempts.best
            patience = FREE_IDLE if is_free and before is not None else MAX_IDLE
            if attempts.is_over(first) or idle >= patience or now < FLAT_WALK * left / 2:
                break
            walk, pack = (min(1.0, part * left / now) for part in (FLAT_WALK, FLAT_PACK))
            with attempts.limited(shares=attempts.shares._replace(walk=walk, pack=pack)):
                plans, is_tried = _try_pair(attempts, targets, loose, number)
        idle = 0 if attempts.best is not before or (before is None and is_tried) else idle + 1
        loose = min((loose, *plans), key=lambda plan: plan.score)
    return idle < patience


def _try_pair(attempts: Attempts, targets: NearTargets, start: Plan, number: int) -> tuple[list[Plan], bool]:
    """(plans for the next targets, whether any was offered): those that changed and are cheaper than the best one."""
    pair, before = targets.pair()[: cores()], attempts.best
    plans = flatter(attempts, start, pair, number)
    tried = [
        (target, attempts.offer(plan, pack=False))
        for target, plan in zip(pair, plans, strict=True)
        if plan is not start and beats(plan, before)
    ]
    targets.update([target for target, fits in tried if not fits], [target for target, fits in tried if fits])
    if not tried:
        targets.loosen()
    return plans, bool(tried)


def flatter(attempts: Attempts, start: Plan, targets: Sequence[int], number: int) -> list[Plan]:
    """Plans with addresses by other recomputation that hold about so many bytes near the budget, or `start`.

    Those that are cheaper than the best plan are packed. One thread for each of the targets; `number` counts calls.
    """
    known, rounded = attempts.best, attempts.rounded
    seed = rounded.goal.seed + number * len(targets)

    def found(k: int) -> Plan:
        goal = replace(rounded.goal, seed=seed + k)
        with attempts.monitored(rounded, attempts.shares.walk, 1.0) as monitor:
            walked = continuation.flatter(rounded.lowered.problem, goal, start.candidate, targets[k], monitor)
        if walked.order is start.order:
            return start
        plan = attempts.swept(walked)
        return attempts.packed(plan, only_within=True) if beats(plan, known) else plan

    with ThreadPoolExecutor(len(targets)) as pool:
        return list(pool.map(found, range(len(targets))))
