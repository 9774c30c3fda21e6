"""Optional tasks: where an order may run one for the first time, and when it may do without one."""

from __future__ import annotations

import numpy as np

from planner.problem.columns import RESIDENT, Problem
from planner.problem.plan import Goal, Order


class OptionalTasks:
    """The tasks of a problem without copies that may run zero times. Copies in an order have larger numbers."""

    def __init__(self, problem: Problem, goal: Goal):
        self.problem, self.goal = problem, goal
        self.tasks = np.flatnonzero(problem.optional).tolist()
        if not self.tasks:
            return
        self._before_every = problem.after_every.transposed(problem.tasks)
        self._before_first = problem.after_first.transposed(problem.tasks)
        self._producer, self._writers = problem.producer(), problem.writes.transposed(problem.buffers)

    def may_begin(self, order: Order, task: int, place: int) -> bool:
        """Whether an order without the task may run it at step `place`; reads of contents are left to the evaluator."""
        problem = self.problem
        before, after = order[:place], order[place:]
        before, after = before[before < problem.tasks], after[after < problem.tasks]
        new = np.setdiff1d(after, before)  # tasks whose first run follows
        written, shapes = problem.writes[task], problem.shape_reads[task]
        shapes = shapes[problem.hold[shapes] != RESIDENT]
        others = self._writers.gather(written[self._producer[written] == task])
        return not (
            np.isin(after, self._before_every[task]).any()
            or np.isin(before, problem.after_every[task]).any()
            or np.isin(new, self._before_first[task]).any()
            or np.isin(before, problem.after_first[task]).any()
            or (self.goal.strict_phases and self._crosses_phases(task, before, new))
            or (self.goal.order_is_given and ((before > task).any() or (new < task).any()))
            or np.isin(before, others).any()
            or not np.isin(self._producer[written], [task, *before]).all()
            or not np.isin(self._producer[shapes], [-1, *before]).all()
        )

    def _crosses_phases(self, task: int, before: Order, new: Order) -> bool:
        phase = self.problem.phase
        return bool((phase[before] > phase[task]).any() or (phase[new] < phase[task]).any())

    def other_writers(self, task: int) -> list[int]:
        """The other tasks that write a buffer of the task, ascending."""
        writers = np.unique(self._writers.gather(self.problem.writes[task]))
        return [int(other) for other in writers.tolist() if other != task]

    def may_leave(self, order: Order, task: int) -> bool:
        """Whether an order may do without the task; reads of contents are left to the evaluator."""
        rest = order[(order < self.problem.tasks) & (order != task)]
        own = self.problem.writes[task]
        own = own[self._producer[own] == task]
        return not (
            np.isin(self.problem.writes.gather(rest), own).any()
            or np.isin(self.problem.shape_reads.gather(rest), own[self.problem.hold[own] != RESIDENT]).any()
        )
