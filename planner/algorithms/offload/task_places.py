"""Places of tasks in an order: where one may run, and when an order may do without an optional one."""

from __future__ import annotations

import numpy as np

from planner.problem.columns import RESIDENT, Problem
from planner.problem.plan import Goal, Order


class TaskPlaces:
    """Legal places of the tasks of a problem without copies. Copies in an order have larger numbers."""

    def __init__(self, problem: Problem, goal: Goal):
        self.problem, self.goal = problem, goal
        self.optional = np.flatnonzero(problem.optional).tolist()  # tasks that may run zero times
        self._before_every = problem.after_every.transposed(problem.tasks)
        self._before_first = problem.after_first.transposed(problem.tasks)
        self._producer, self._writers = problem.producer(), problem.writes.transposed(problem.buffers)

    def may_begin(self, order: Order, task: int, place: int) -> bool:
        """Whether an order may run the task at step `place` for the first time; its later runs are behind `place`.

        Reads of contents are left to the evaluator.
        """
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
            or np.isin(problem.shape_reads.gather(before), self._own(task)).any()
        )

    def _crosses_phases(self, task: int, before: Order, new: Order) -> bool:
        phase = self.problem.phase
        return bool((phase[before] > phase[task]).any() or (phase[new] < phase[task]).any())

    def may_repeat(self, order: Order, task: int, place: int) -> bool:
        """Whether an order may run the task at step `place` once more, behind its first run."""
        before, after = order[:place], order[place:]
        return bool(
            (before == task).any()
            and not np.isin(before, self.problem.after_every[task]).any()
            and not np.isin(after, self._before_every[task]).any()
        )

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
            or np.isin(self.problem.shape_reads.gather(rest), self._own(task)).any()
        )

    def _own(self, task: int) -> np.ndarray:
        """Buffers that do not exist before the task has run."""
        written = self.problem.writes[task]
        return np.asarray(written[(self._producer[written] == task) & (self.problem.hold[written] != RESIDENT)])
