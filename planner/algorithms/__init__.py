"""The table of planners; each is a module with `plan(problem, goal, monitor) -> Order`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from planner.errors import BadRequest
from planner.monitor import Monitor
from planner.plan import Goal, Order
from planner.problem import Problem

Planner = Callable[[Problem, Goal, Monitor], Order]

#: Name -> module; imported when it is first asked for.
PLANNERS = {
    "as_given": "planner.algorithms.as_given",
    "mirror": "planner.algorithms.mirror",
    "segments": "planner.algorithms.segments",
    "revolve": "planner.algorithms.revolve",
    "recurrent": "planner.algorithms.recurrent",
    "greedy": "planner.algorithms.greedy",
    "blocks": "planner.algorithms.blocks",
    "moment": "planner.algorithms.moment",
    "anneal": "planner.algorithms.anneal",
    "search_order": "planner.algorithms.search_order",
    "longest_path": "planner.algorithms.longest_path",
    "chain": "planner.algorithms.chain",
    "exact": "planner.algorithms.exact",
    "milp": "planner.algorithms.milp",
    "cp_sat": "planner.algorithms.cp_sat",
    "min_cut": "planner.algorithms.min_cut",
    "dtr": "planner.algorithms.dtr",
}


def planner_named(name: str) -> Planner:
    """The planner of that name. Raises BadRequest listing those there are."""
    if name not in PLANNERS:
        raise BadRequest.one(
            "unknown_planner", "planner", repr(name), f"auto, {', '.join(PLANNERS)}", "choose one of these"
        )
    planner: Planner = import_module(PLANNERS[name]).plan
    return planner
