"""Planning algorithms: the table PLANNERS of modules with `plan(problem, goal, monitor) -> Order`.

May import `planner.bounds`, `planner.errors`, `planner.problem` and `graph.cancellation`.
Start reading at `heuristics/as_given.py`, then `checkpointing/sqrt_segments.py` and `greedy/planner.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from planner.errors import BadRequest
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order

Planner = Callable[[Problem, Goal, Monitor], Order]

#: Name -> module below this package, imported when first needed.
PLANNERS = {
    "as_given": "heuristics.as_given",
    "mirror": "heuristics.mirror",
    "segments": "checkpointing.sqrt_segments",
    "revolve": "checkpointing.revolve",
    "recurrent": "checkpointing.recurrent",
    "greedy": "greedy.planner",
    "blocks": "blocks.planner",
    "moment": "heuristics.step_cut",
    "anneal": "annealing.parallel",
    "search_order": "annealing.order_only",
    "longest_path": "heuristics.longest_path",
    "chain": "checkpointing.rotor",
    "exact": "exact.dijkstra",
    "milp": "exact.milp",
    "cp_sat": "exact.cp_sat",
    "min_cut": "heuristics.pytorch_min_cut",
    "dtr": "heuristics.dtr",
    "evict": "eviction.planner",
    "search_evictions": "eviction.search",
}

#: Others, which improve plans of "auto" by the clock and cannot be requested: their solver may end with another order
#: each time.
BY_CLOCK = {"neighbourhood": "exact.neighbourhood"}


def planner_named(name: str) -> Planner:
    """The `plan` function of that planner. Raises BadRequest listing those that can be requested."""
    if name not in PLANNERS | BY_CLOCK:
        raise BadRequest.one(
            "unknown_planner", "planner", repr(name), f"auto, {', '.join(PLANNERS)}", "choose one of these"
        )
    planner: Planner = module_of(name).plan
    return planner


def module_of(name: str) -> ModuleType:
    """The module of the planner `name`, a key of `PLANNERS` or `BY_CLOCK`."""
    return import_module(f"{__name__}.{(PLANNERS | BY_CLOCK)[name]}")
