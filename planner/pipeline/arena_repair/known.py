"""Plans that the search has found already: their addresses are tried before new plans are searched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.pipeline.arena_repair.attempts import Attempts
from planner.problem.plan import Candidate, Plan

#: Plans whose addresses exceed the budget by at most this share are packed in such a share of the time left.
NEAR_EXCESS, NEAR_PACK = 0.01, 0.6


def try_seeds(attempts: Attempts, first: Plan, seeds: Sequence[Candidate]) -> list[Plan]:
    """Offer other plans, then pack that of these with the least excess; returns those that do not fit."""
    missed, tried = list[Plan](), {first.order.tobytes()}
    for k, seed in enumerate(seeds):
        if attempts.is_over(first):
            if attempts.best is None and attempts.walks_by_clock and not attempts.cancel.is_set():
                place_lowest(attempts, [each for each in seeds[k:] if each.order.tobytes() not in tried])
            return missed
        if (order := seed.order.tobytes()) in tried:
            continue
        tried.add(order)
        if attempts.best is not None and not attempts.is_better(attempts.formulation.plan_of(seed)):
            continue
        placed = attempts.swept(seed, attempts.shares.seed)
        if not attempts.offer(placed, pack=False):
            missed.append(placed)
    best = min(missed, key=attempts.over, default=first)
    if attempts.over(best) < attempts.over(first):
        attempts.offer(best)
    return missed


def place_lowest(attempts: Attempts, seeds: Sequence[Candidate]) -> None:
    """Offer the seed with the lowest peak, whatever the time: a sweep is quick, and the last chance of a plan."""
    lowest = min(map(attempts.rounded.plan_of, seeds), key=lambda plan: plan.score.peak_bytes, default=None)
    if lowest is not None:
        attempts.tried(attempts.swept(lowest.candidate, attempts.shares.seed), pack=False)


def is_near(attempts: Attempts, plan: Plan) -> bool:
    """Whether the addresses of a plan exceed the budget so little that a packing is likely to fit."""
    return not attempts.is_large and attempts.over(plan) <= NEAR_EXCESS * attempts.budget


def pack_near(attempts: Attempts, missed: Iterable[Plan]) -> None:
    """Pack plans whose addresses exceed the budget a little, those with the least time first."""
    until = attempts.until
    if attempts.best is None:  # what follows may find the only plan whose addresses fit
        until -= (1 - NEAR_PACK) * attempts.seconds_left()
    near = [plan for plan in missed if is_near(attempts, plan)]
    with attempts.limited(shares=attempts.shares._replace(pack=NEAR_PACK), until=until):
        for plan in sorted(near, key=lambda plan: plan.score):
            if attempts.is_over(plan):
                break
            attempts.tried(plan)
