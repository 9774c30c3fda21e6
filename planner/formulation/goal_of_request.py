"""Goal of a formulation from a request: the budget in bytes or the overhead limit, and whether phases are strict."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np

from planner.errors import BadRequest
from planner.formulation.formulation import Formulation, held_budget
from planner.formulation.lower_bound import LowerBound
from planner.formulation.memory_accounting import MemoryAccounting
from planner.lowering.lowered_graph import LoweredGraph
from planner.problem import liveness
from planner.problem.alternatives import resolve_choices
from planner.problem.evaluate import evaluate
from planner.problem.plan import Goal
from planner.request.budget import MAX_BYTES, Budget
from planner.request.plan_request import DEFAULT_OVERHEAD, Request
from planner.request.target_runtime import runtime_named
from planner.search import portfolio

#: Share of the search time for the smallest peak, where the budget is a share of what lies above that.
SMALLEST_PART = 0.5


def formulate_lowered(
    lowered: LoweredGraph,
    request: Request,
    order_is_given: bool,
    device_bytes: int,
    fits_bytes: int | None,
    cancel: threading.Event | None = None,
) -> Formulation:
    """Formulation of `request` on a lowered graph.

    `order_is_given` comes from the document; `device_bytes` is the device's memory; `fits_bytes` is the memory to fit,
    None if that is not the goal. Setting `cancel` ends a search for the smallest peak.
    Raises BadRequest if strict phases are requested for a document that interleaves them, or if bytes exceed 2^63 - 1.
    """
    problem = lowered.problem
    max_reserve = MAX_BYTES - int(problem.size.sum()) - int(problem.workspace.max(initial=0))
    if request.reserve > max_reserve:
        raise BadRequest.one(
            "bad_field",
            "reserve",
            f"{request.reserve:,} bytes in addition to those of the step",
            f"at most {max_reserve}: 2^63 - 1 together",
            "reserve fewer bytes",
        )
    strict, warnings = _strictness(lowered, request)
    goal = Goal(
        max_overhead=request.max_overhead,
        order_is_given=order_is_given if request.order is None else request.order == "given",
        strict_phases=strict,
        seconds=request.search_seconds,
        iterations=request.iterations,
        seed=request.seed,
    )
    formulation = Formulation(
        lowered,
        goal,
        MemoryAccounting.of(lowered, request.counts, request.reserve),
        None,
        LowerBound.without_search(problem),
        evaluate(problem, goal, np.arange(problem.tasks), "as_given"),
        device_bytes if fits_bytes is None else fits_bytes,
        warnings,
        places=runtime_named(request.runtime).places and request.layout != "none",
    )
    return with_limit(formulation, request, fits_bytes, cancel)


def with_limit(
    formulation: Formulation, request: Request, fits_bytes: int | None, cancel: threading.Event | None = None
) -> Formulation:
    """Set the budget of the goal, or its maximum overhead. Setting `cancel` ends a search for the smallest peak.

    The time of such a search is taken off that of the goal.
    """
    count, goal = formulation.count, formulation.goal
    if fits_bytes is not None:
        budget = fits_bytes
    elif request.budget is None:
        extra = DEFAULT_OVERHEAD if request.max_overhead is None else request.max_overhead
        return replace(formulation, goal=replace(goal, max_overhead=extra))
    elif request.fraction_of == "reducible" and request.budget.bytes is None:
        began = time.monotonic()
        budget = request.budget.of(whole_bytes(formulation, request.budget), _smallest_bytes(formulation, cancel))
        took = min(time.monotonic() - began, SMALLEST_PART * goal.seconds)
        goal = goal.limited(goal.seconds - took, goal.iterations)
    else:
        budget = request.budget.of(whole_bytes(formulation, request.budget))
    held = 0 if request.lowest_peak else held_budget(count, budget)
    return replace(formulation, goal=replace(goal, budget_bytes=held), budget_bytes=budget)


def whole_bytes(formulation: Formulation, budget: Budget) -> int:
    """Reported bytes that `budget` is a share of: those of the step without a plan; 0 for a budget in bytes.

    With 100% the step must fit as it is, so that the bytes its addresses waste are included.
    """
    whole = 0 if budget.bytes is not None else formulation.baseline_bytes
    if not formulation.places or budget.fraction != 1:
        return whole
    return max(whole, formulation.needed_with_addresses(formulation.baseline))


def _smallest_bytes(formulation: Formulation, cancel: threading.Event | None) -> int:
    """Smallest reported bytes that a plan found by the planners needs before addresses."""
    lowest = replace(formulation, goal=replace(formulation.goal, budget_bytes=0)).in_arena_bytes()
    problem, monitor = lowest.lowered.problem, lowest.monitor(None, cancel, SMALLEST_PART * lowest.goal.seconds)
    found = portfolio.search(problem, lowest.goal, "auto", monitor)
    return lowest.count.counted(liveness.peak(resolve_choices(problem, found.choices), found.order))


def _strictness(lowered: LoweredGraph, request: Request) -> tuple[bool, tuple[str, ...]]:
    """(strict phases, warnings). Interleaved phases are planned mixed unless the request says strict."""
    back = np.flatnonzero(np.diff(lowered.problem.phase) < 0)
    if request.phases == "mixed":
        return False, ()
    if not len(back):
        return True, ()
    task = int(back[0]) + 1
    if request.phases == "strict":
        raise BadRequest.one(
            "phases_interleave",
            "phases",
            f"{lowered.name_of_task(task)} follows a node of a later phase",
            "forward, then backward, then update",
            'reorder the nodes, or set phases to "mixed"',
        )
    return False, (f"phases interleave from {lowered.name_of_task(task)} on: planned with mixed phases",)
