"""How arena repair divides its time: with packing searches, or for graphs that are too large for one."""

from __future__ import annotations

from typing import NamedTuple

from planner.problem.monitor import Monitor
from planner.problem.plan import Plan

#: Share of the repair by the clock for quick plans, if the addresses of none that a walk finds fit; and share that is
#: too short for another walk.
QUICK_PART, LEAST_PART = 0.2, 0.03
#: Walks without a better plan that end the repair by the clock, once the addresses of one fit.
MAX_IDLE = 4
#: By the clock, charges are bisected until the last that missed and the first that fitted are so near: share of the
#: budget.
MIN_CHARGE = 2e-3
#: Seconds per instance in which a packing search has a chance.
INSTANCE_SECONDS = 5e-5


class Shares(NamedTuple):
    """Shares of the remaining time for each part of the repair."""

    first: float  # the first layout
    seed: float  # layout of an earlier order of the search
    layout: float  # layout of a new order
    pack: float  # a tighter packing
    fill: float  # all walks that fill the last unit of the budget
    quick: float  # a quick plan
    order: float  # a reordering
    walk: float  # a walk from a plan
    flat: float  # an order that holds less near the budget


#: With time for packing searches, and for graphs too large for one in the time left.
SHARES = Shares(0.15, 0.02, 0.04, 0.15, 0.7, 0.3, 0.1, 0.3, 0.12)
LARGE_SHARES = Shares(0.1, 0.02, 0.1, 0.1, 0.7, 0.6, 0.1, 0.5, 0.0)
#: Of walks from a plan until the time is over, each in a part of what the one before left.
WALK_SHARES = Shares(0.15, 0.02, 0.04, 0.2, 0.7, 0.3, 0.05, 0.4, 0.15)


def has_time(monitor: Monitor, plan: Plan) -> bool:
    """Whether a packing search within the monitor's limits has a chance to end."""
    return monitor.iterations is not None or monitor.seconds >= INSTANCE_SECONDS * len(plan.lifetimes.buffer)
