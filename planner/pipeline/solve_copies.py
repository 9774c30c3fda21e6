"""The second part of a solve with engines: copies of the plan, or collectives beside compute, in the time left."""

from __future__ import annotations

import math

from planner.formulation.formulation import Formulation
from planner.formulation.offloading import PLAIN_SHARE, with_collectives_beside, with_copies_searched
from planner.pipeline.solve_stages import SolveStages
from planner.problem.monitor import Monitor
from planner.problem.plan import Plan
from planner.request.plan_request import Request

#: Share of the search time below which a search without copies is not continued.
MIN_REST_PART = 0.05


def with_engines(
    formulation: Formulation, plain: Plan, request: Request, stages: SolveStages, is_given: bool
) -> tuple[Formulation, Plan]:
    """(formulation with the copies of the plan, the best plan found), in the time that plans without left.

    Collectives run beside compute if the formulation overlaps them. A plan that `is_given` keeps its order unless
    copies are requested.
    """
    stages.end_bound_beside()
    goal, clock = formulation.goal, stages.clock
    if goal.iterations is None:
        clock.lengthen(goal.seconds, PLAIN_SHARE)
    seconds = goal.seconds if math.isinf(clock.until) else clock.seconds_left()
    if is_given and not request.offload:
        monitor = Monitor(lambda order: plain.score, seconds, goal.iterations, cancel_event=stages.cancel)
        return with_collectives_beside(formulation, plain, request, monitor)
    found, plan, stopped = with_copies_searched(formulation, plain, request, stages.cancel, seconds)
    stages.stopped_by_clock |= stopped
    if not found.has_engines and goal.iterations is None and not stages.cancel.is_set():
        return found, _continued(formulation, plan, request, stages)
    return found, plan


def _continued(formulation: Formulation, plain: Plan, request: Request, stages: SolveStages) -> Plan:
    """The plan without copies, or a better one that the time left finds: no copy was of use."""
    notes, rest = stages.notes, stages.for_search(formulation, request)
    if rest.goal.seconds < MIN_REST_PART * formulation.goal.seconds:
        return plain
    found = stages.search(rest, request.planner, [plain.candidate])
    placed, _ = stages.placed(formulation, found, request, [plain.candidate])
    stages.end_bound_beside()
    stages.notes = list(dict.fromkeys([*notes, *stages.notes]))
    return min(plain, placed, key=lambda plan: (formulation.bytes_over_budget(plan), plan.score))
