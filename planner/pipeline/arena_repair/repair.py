"""Arena repair: if the addresses of a plan exceed the budget, pack them tighter, else walk on to a plan that fits.

    bytes  |         +----+         No step holds more than the budget, yet b lies past it, because no hole is as
    budget |- - - - -|- b-|- -      large as b. The tasks that run while b is live are charged the excess, as if their
           |  +------+-+--+         workspace were larger. The next plan holds less during these steps, by another
           +--+--------+--- steps   order or more recomputation, and as much as before during the other steps.

    pack the same order ──▶ charge ──▶ re-plan ──▶ fits ──▶ bisect the charge back
                              ▲           │
                              ╰─ exceeds ◀╯

By the clock, `auto` first tries the same runs in a flat order, which holds less near the budget: holes do no harm then.
With the order given, or if that misses, it tries other recomputation that holds less there.
Next it walks on from the plan: it reorders the same runs, then changes recomputation too. All tasks are
charged what the addresses waste, so that the peak falls by as much. If no addresses fit, quick plans follow.
With LOWERED_TASKS and more, where walks make few moves in the time, gaps are closed in the plan first, which takes less
time than a new plan.

At the end, and by the clock before `auto` walks on, recomputations that the addresses do not need are dropped: plans
for charges have many.

Other planners re-plan, and under an iteration limit `auto` walks on after that. The first charges are to the tasks that
run during the excess, the last lower the budget for all tasks, which is more likely to succeed.

The result is the plan with the least time whose addresses fit; else the first plan, by the clock with `auto` the plan
whose addresses exceed the budget least.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.formulation.formulation import Formulation
from planner.pipeline.arena_repair.attempts import Attempts
from planner.pipeline.arena_repair.descent import BISECTIONS, Descent, quick_plan
from planner.pipeline.arena_repair.flat import FLAT_TRIES, is_hopeless, recompute_flat, with_flat_order
from planner.pipeline.arena_repair.gaps import close_gaps
from planner.pipeline.arena_repair.known import is_near, pack_near, try_seeds
from planner.pipeline.arena_repair.shares import LARGE_SHARES, SHARES, has_time
from planner.pipeline.arena_repair.trim import trim
from planner.pipeline.arena_repair.walks import fill_last_unit, walk, walk_on
from planner.problem.plan import Candidate, Order, Plan
from planner.search.improver_beside import WALK

#: Share of the search time reserved for the repair, and more of it once a plan within the budget has an arena above it:
#: so much with LARGE_TASKS tasks and an arena LARGE_EXCESS of the budget above it, and less in proportion with less.
RESERVED_PART, EXCEEDED_PART, LARGE_TASKS, LARGE_EXCESS = 0.125, 0.55, 250, 0.06

#: By the clock, share of the time left to trim the best plan before walks, and share kept to trim it at the end.
TRIM_PART = 0.1


@dataclass(frozen=True, eq=False, slots=True)
class Repaired:
    """A plan with addresses, notes for the report, and whether a clock ended a search for it."""

    plan: Plan
    notes: tuple[str, ...] = ()
    stopped_by_clock: bool = False


def repair_arena(
    formulation: Formulation,
    plan: Plan,
    layout: str,
    planner: str,
    cancel: threading.Event,
    until: float = math.inf,
    seeds: Sequence[Candidate] = (),
    goes_on: bool = False,
) -> Repaired:
    """`plan` with addresses if they fit the budget, else the plan with the least time found whose addresses fit.

    `planner` re-plans; "auto" also walks on from the plan. `seeds` are other plans, best first, tried before new ones.
    No search begins once `cancel` is set, or after `until` (seconds of the monotonic clock) unless the goal counts
    iterations. With `goes_on`, plans with less time are searched from then on too if the addresses of `plan` fit.
    If nothing fits, returns `plan`, by the clock with "auto" the plan whose addresses exceed the budget least.
    """
    attempts = Attempts(formulation, planner, cancel, until)
    first = with_layout(attempts, plan, layout)
    excess = formulation.bytes_over_budget(first)
    if excess and may_follow(formulation) and not cancel.is_set() and not attempts.misses_budget(first):
        search_fitting(attempts, first, seeds)
    elif not excess and may_follow(formulation):
        fill_last_unit(attempts, first)
        if goes_on:
            walk_on(attempts, first)
    best = attempts.best or attempts.closest or first
    is_replaced = excess and not np.array_equal(best.order, first.order)
    notes = (_note(formulation, first, best),) if is_replaced else ()
    return Repaired(best, notes, attempts.stopped_by_clock)


def _note(formulation: Formulation, first: Plan, best: Plan) -> str:
    """Note for the report that another plan replaces the first one."""
    before, after = (formulation.overhead(each.score.cost) for each in (first, best))
    excess, left = (formulation.bytes_over_budget(each) for each in (first, best))
    budget = formulation.budget_bytes or 1
    fits = f"that needs {left / budget:.1%} more" if left else "whose addresses fit"
    return (
        f"arena repair: a plan with {before:.2%} overhead needs {excess / budget:.1%} more than the budget after "
        f"layout; replaced by a plan with {after:.2%} overhead {fits}"
    )


def may_follow(formulation: Formulation) -> bool:
    """Whether the addresses of a plan are repaired where they exceed the budget."""
    return formulation.places and bool(formulation.goal.budget_bytes)


def probable_part(formulation: Formulation, order: Order) -> float:
    """Share of the search time for the repair, beside RESERVED_PART: 0 to EXCEEDED_PART.

    From a quick layout of an order within the budget, under the first alternatives.
    """
    monitor = formulation.monitor()
    monitor.seconds = 0.0
    over = formulation.bytes_over_budget(formulation.placed(formulation.evaluated(order, ""), "fast", monitor))
    excess, tasks = over / (formulation.budget_bytes or 1), formulation.lowered.problem.tasks
    return EXCEEDED_PART * min(1.0, tasks / LARGE_TASKS) * min(1.0, excess / LARGE_EXCESS)


def with_layout(attempts: Attempts, plan: Plan, layout: str) -> Plan:
    """The plan with the requested layout; by the clock with quick addresses, if these exceed the budget.

    Where the time is too short for a packing search, later attempts have LARGE_SHARES.
    """
    formulation, follows = attempts.formulation, may_follow(attempts.formulation)
    swept: Plan | None = None
    if follows and attempts.walks_by_clock and layout != "none":
        swept = attempts.with_sweeps(plan, SHARES.first)
        if attempts.cancel.is_set() and attempts.is_large:
            return swept
        if attempts.over(swept) and not attempts.misses_budget(swept):
            return swept  # what follows packs it
    with attempts.monitored(formulation, SHARES.first if follows else 1.0, 1.0) as monitor:
        if follows and not has_time(monitor, plan):
            attempts.shares = LARGE_SHARES
            monitor.seconds *= LARGE_SHARES.first / SHARES.first
        found = formulation.placed(plan, layout, monitor)
    return found if swept is None else min(found, swept, key=attempts.over)


def search_fitting(attempts: Attempts, first: Plan, seeds: Sequence[Candidate]) -> None:
    """Search for plans whose addresses fit, starting from the first plan, and trim the best one."""
    if attempts.walks_by_clock:
        with attempts.limited(until=attempts.until - TRIM_PART * attempts.seconds_left()):
            _search_by_clock(attempts, first, seeds)
    else:
        _search_by_charges(attempts, first, seeds)
    trim(attempts, first)


def _search_by_charges(attempts: Attempts, first: Plan, seeds: Sequence[Candidate]) -> None:
    """Search by quick plans, then by walks from the first plan."""
    attempts.offer(first)
    try_seeds(attempts, first, seeds)
    # Under an iteration limit, which walks do not share with quick plans, only walks bisect from a walk's plan.
    by_walks = attempts.planner == "auto" and first.planner == WALK and math.isinf(attempts.until)
    Descent(attempts, first, quick_plan).run(0 if by_walks else BISECTIONS, uniform_first=True)
    if attempts.planner == "auto":
        Descent(attempts, first, walk).run(BISECTIONS)


def _search_by_clock(attempts: Attempts, first: Plan, seeds: Sequence[Candidate]) -> None:
    """Walk on from the plan in most of the time; quick plans follow if the addresses of none fit."""
    if attempts.is_large:
        attempts.shares = LARGE_SHARES
    near = is_near(attempts, first)
    packed = flat = with_flat_order(attempts, first, FLAT_TRIES)
    if flat is first:  # `pack_near` has more time for a plan that nearly fits
        packed = attempts.tried(first, pack=not (near or is_hopeless(attempts, first)))
    is_spent = not near and recompute_flat(attempts, packed)
    missed = try_seeds(attempts, packed, seeds)
    pack_near(attempts, [packed, *missed] if flat is first else missed)
    is_spent = is_spent or (near and recompute_flat(attempts, packed))
    if attempts.walks_are_slow:
        close_gaps(attempts, packed)
    with attempts.limited(until=attempts.until - (1 - TRIM_PART) * attempts.seconds_left()):
        trim(attempts, first)
    if attempts.best is not None:
        fill_last_unit(attempts, attempts.best)
    if attempts.best is not None or not is_spent:
        walk_on(attempts, packed)
    if attempts.best is None:
        Descent(attempts, packed, quick_plan).run(BISECTIONS, uniform_first=True)
