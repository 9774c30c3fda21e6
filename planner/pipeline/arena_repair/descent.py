"""Descents: charge tasks more until the addresses of a new plan fit, then bisect the charge back.

The first charges are to the tasks that run while addresses exceed the budget; uniform charges lower the budget for all
tasks, which is more likely to succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.pipeline.arena_repair.attempts import PLAN_ITERATIONS, Attempts
from planner.pipeline.arena_repair.charges import charged, with_excess
from planner.problem.plan import Plan
from planner.search import continuation

#: Makes a plan with addresses for a formulation with charges, from a plan whose addresses miss the budget.
Replan = Callable[[Attempts, Formulation, Plan], Plan]

#: Charges to the tasks that run during the excess; then steps of the charge to all tasks, in multiples of the excess.
TASK_CHARGES, UNIFORM_STEPS = 3, (1, 1, 2)
#: Bisections between the last charge that missed and the first that fitted.
BISECTIONS = 5


def quick_plan(attempts: Attempts, formulation: Formulation, start: Plan) -> Plan:
    """Plan with addresses for a charged formulation by the requested planner, or by a quick one."""
    problem, goal = formulation.lowered.problem, formulation.goal
    with attempts.monitored(formulation, attempts.shares.quick, PLAN_ITERATIONS) as monitor:
        found = continuation.replanned(problem, goal, attempts.planner, start.candidate, monitor)
    return attempts.swept(found)


@dataclass(eq=False, slots=True)
class Descent:
    """One descent from the first plan; `replan` makes plans, the better of which `attempts` keep."""

    attempts: Attempts
    first: Plan
    replan: Replan
    loose: Plan = field(init=False)  # the last plan whose addresses missed the budget

    def __post_init__(self) -> None:
        self.loose = self.first

    def run(self, bisections: int, uniform_first: bool = False) -> None:
        """Charge more until the addresses of a plan fit, then bisect the charge back so many times."""
        missed = np.zeros(self.attempts.tasks, np.int64)
        for charge in self.charges(uniform_first):
            if self.attempts.is_over(self.first):
                return
            if self._fits(charge):
                self._bisect(missed, charge, bisections)
                return
            missed = charge

    def _bisect(self, missed: np.ndarray, fitting: np.ndarray, bisections: int) -> None:
        """Bisect between the last charge that missed and the first that fitted, both int64[n] bytes."""
        for _ in range(bisections):
            if self.attempts.is_over(self.first):
                return
            middle = (missed + fitting) // 2
            if self._fits(middle):
                fitting = middle
            else:
                missed = middle

    def _fits(self, charge: np.ndarray) -> bool:
        """Whether the addresses of a new plan fit, with a charge to each task; else it becomes `loose`."""
        found = self.replan(self.attempts, charged(self.attempts.rounded, charge), self.loose)
        fits = self.attempts.offer(found)
        self.loose = self.loose if fits else found
        return fits

    def charges(self, uniform_first: bool) -> Iterator[np.ndarray]:
        """int64[n] each: bytes charged to each task: the excess of `loose`, or multiples to all tasks."""
        if uniform_first:
            yield from self._uniform_charges()
        charge = np.zeros(self.attempts.tasks, np.int64)
        for _ in range(TASK_CHARGES):
            charge = with_excess(self.attempts.formulation, self.attempts.rounded, self.loose, charge)
            yield charge
        if not uniform_first:
            yield from self._uniform_charges()

    def _uniform_charges(self) -> Iterator[np.ndarray]:
        """int64[n] each: the same bytes charged to every task, in ever larger steps.

        A step begins at the slack of `loose`: a charge within the slack changes nothing.
        """
        attempts, charge = self.attempts, 0
        excess = max(ALIGNMENT, attempts.over(self.first))
        for times in UNIFORM_STEPS:
            peak = attempts.rounded.plan_of(self.loose.candidate).score.peak_bytes
            charge = max(charge, attempts.budget - peak) + excess * times
            yield np.full(attempts.tasks, charge)
