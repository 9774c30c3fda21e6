"""How arena repair divides its time: with packing searches, or for graphs that are too large for one."""

from __future__ import annotations

from typing import NamedTuple

from planner.layout.canonical_search import MAX_STORAGES
from planner.problem.monitor import Monitor
from planner.problem.plan import Plan

#: Seconds in which a packing search has a chance: per pair of instances, and per instance above MAX_STORAGES of them.
PAIR_SECONDS, INSTANCE_SECONDS = 5e-7, 1e-4


class Shares(NamedTuple):
    """Shares of the remaining time for each part of the repair."""

    first: float  # the first layout
    seed: float  # layout of an earlier order of the search
    layout: float  # layout of a new order
    pack: float  # a tighter packing
    quick_round: float  # the round with the quick planner
    quick: float  # a quick plan
    order: float  # a reordering
    walk: float  # a walk from a plan


#: With time for packing searches, and for graphs too large for one in the time left.
SHARES = Shares(0.15, 0.02, 0.04, 0.15, 0.7, 0.3, 0.1, 0.3)
LARGE_SHARES = Shares(0.1, 0.02, 0.1, 0.1, 0.7, 0.6, 0.1, 0.5)


def has_time(monitor: Monitor, plan: Plan) -> bool:
    """Whether a packing search within the monitor's limits has a chance to end."""
    count = len(plan.lifetimes.buffer)
    needed = PAIR_SECONDS * count**2 if count <= MAX_STORAGES else INSTANCE_SECONDS * count
    return monitor.iterations is not None or monitor.seconds >= needed
