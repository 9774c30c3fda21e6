"""Large plans, where walks make few moves in the time: close gaps in the plan, which takes less time than a new one."""

from __future__ import annotations

from planner.formulation.formulation import Formulation
from planner.pipeline.arena_repair.attempts import PLAN_ITERATIONS, Attempts
from planner.pipeline.arena_repair.charges import charged_alike
from planner.pipeline.arena_repair.shares import MIN_CHARGE
from planner.problem.plan import Plan
from planner.search import continuation

#: The peak of the plan is lowered each time within such a share of the time left, and after so many charges whose
#: addresses miss nothing more is tried.
LOWER_PART, MAX_LOWERED = 0.4, 8


def close_gaps(attempts: Attempts, first: Plan) -> None:
    """Charge all tasks what the addresses of a plan waste, and close gaps in it; once they fit, bisect the charge.

    Each charge is met from the plan with the largest charge below it, which has the fewest recomputations too many.
    """
    nearest = MIN_CHARGE * attempts.budget
    least = int(nearest) if attempts.is_large else 0  # a step takes long there
    loose, missed, charge, fitting = first, 0, max(least, attempts.wasted(first)), None
    for _ in range(MAX_LOWERED):
        if attempts.is_over(first) or charge >= attempts.budget:
            return
        found = attempts.tried(lowered(attempts, charged_alike(attempts.rounded, charge), loose), pack=False)
        over = attempts.over(found)
        if over or found.score.bytes_over_budget:
            if fitting is None and found is loose:
                return
            loose, missed = found, charge
            charge = max(attempts.wasted(found), charge) + over if fitting is None else (missed + fitting) // 2
        else:
            fitting, charge = charge, (missed + charge) // 2
        if fitting is not None and (attempts.is_large or fitting - missed < nearest):
            return


def lowered(attempts: Attempts, formulation: Formulation, start: Plan) -> Plan:
    """Plan with addresses for a charged formulation, by closing gaps in `start`; `start` if that changes none."""
    with attempts.monitored(formulation, LOWER_PART, PLAN_ITERATIONS) as monitor:
        found = continuation.lowered(formulation.lowered.problem, formulation.goal, start.candidate, monitor)
    return start if found.order is start.order else attempts.swept(found)
