"""The second line of a curve: at each budget the plan with copies to the host, beside the one without.

Tightest budget first: a plan with copies within a budget is a candidate for every looser one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from planner.formulation.formulation import Formulation
from planner.formulation.offloading import (
    copied_values,
    planner_limits,
    rank,
    why_no_copies,
    with_copies_again,
    with_copies_searched,
)
from planner.pipeline.solve_stages import SolveStages
from planner.problem.plan import Plan
from planner.report.copies import copies_section
from planner.request.plan_request import Request

FoundPlan = tuple[Formulation, Plan]


def plans_with_copies(
    plain: Sequence[FoundPlan], request: Request, stages: SolveStages, until: float
) -> list[FoundPlan | None]:
    """For each plan without copies a checked one that may have some, no worse; None where there can be no copies.

    Each search gets an equal share of the time left until `until` (on the monotonic clock). Raises IllegalPlan.
    """
    result: list[FoundPlan | None] = [None] * len(plain)
    tightest_first = sorted(range(len(plain)), key=lambda k: plain[k][0].budget_bytes or 0)
    tighter: FoundPlan | None = None
    for done, k in enumerate(tightest_first):
        formulation, plan = plain[k]
        if why := why_no_copies(formulation, request):
            stages.notes.append(f"budget of {formulation.budget_bytes:,} bytes: no copies to the host: {why}")
            continue
        seconds = max(0.0, until - (began := time.monotonic())) / (len(plain) - done)
        found, best, stopped = with_copies_searched(formulation, plan, request, stages.cancel, seconds)
        stages.stopped_by_clock |= stopped
        candidates = [(found, best)]
        if tighter is not None:
            left = max(0.0, began + seconds - time.monotonic())
            candidates.append(with_copies_again(formulation, *tighter, request, stages.cancel, left))
        tighter = min(candidates, key=lambda each: rank(*each))
        tighter[0].check(tighter[1])
        result[k] = tighter
    if tighter is not None:
        stages.notes += planner_limits(request)
    return result


def copied_point(found: FoundPlan | None) -> dict[str, Any] | None:
    """Field `copied` of a point: what the plan with copies reaches; None if there can be none."""
    if found is None:
        return None
    formulation, plan = found
    return {
        "within_budget": formulation.is_within_budget(plan),
        "seconds": plan.score.cost * formulation.lowered.problem.tick,
        "overhead": formulation.overhead(plan.score.cost),
        "peak_bytes": formulation.counted_peak(plan),
        "needed_bytes": formulation.needed_bytes(plan),
        "host_peak_bytes": copies_section(formulation, plan)["host_peak_bytes"],
        "offloaded": copied_values(formulation),
    }
