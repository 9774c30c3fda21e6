"""Copies to the host in a fit: sizes that no plan without copies fits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from planner.errors import BadRequest
from planner.formulation import offloading
from planner.formulation.formulation import Formulation
from planner.pipeline.solve_stages import SolveStages
from planner.problem import same_dataflow
from planner.problem.plan import Goal, Plan
from planner.request.plan_request import Request

FoundPlan = tuple[Formulation, Plan]


def may_copy(formulation: Formulation, request: Request, is_first: bool) -> tuple[bool, str]:
    """(whether plans of a size may have copies, message that the host memory holds none of its values or "").

    Values grow with the size: at the first size such host memory is an error.
    """
    try:
        return request.offload and not offloading.why_no_copies(formulation, request), ""
    except BadRequest as error:
        if is_first:
            raise
        return False, str(error.findings[0])


def replayed(
    formulation: Formulation, goal: Goal, known: Iterable[FoundPlan], request: Request, cancel: threading.Event
) -> Iterator[FoundPlan]:
    """The plans with copies among `known`, which are of other sizes, at the size of `formulation`, with addresses."""
    for other, plan in known:
        plain = other.lowered.plain
        if plain is not None and same_dataflow(formulation.lowered.problem, plain.problem):
            yield offloading.with_copies_again(formulation, other, plan, request, cancel, goal.seconds)


def planned(
    formulation: Formulation,
    plain: Plan,
    goal: Goal,
    request: Request,
    stages: SolveStages,
    is_enough: Callable[[Formulation, Plan], bool],
) -> FoundPlan:
    """The best plan found within the limits of `goal`, or the first that `is_enough`; no worse than `plain`.

    `plain` is a plan without copies, with addresses if the request wants some.
    """
    limited = replace(formulation, goal=goal)
    found, plan, stopped = offloading.with_copies_searched(
        limited, plain, request, stages.cancel, goal.seconds, is_enough
    )
    stages.stopped_by_clock |= stopped
    full = replace(formulation.goal, host_bytes=request.host_memory)
    return replace(found, goal=full), plan
