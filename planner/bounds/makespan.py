"""Lower bound on the makespan of engines side by side: the busiest engine, and the longest chain of tasks.

    compute          a ────── b ──── d ────           engine: a + b + d
    communication             c ────────────          chain:  a + c

Both count one run of each task that must run; a task starts once the tasks that wrote what it reads have ended.
"""

from __future__ import annotations

import numpy as np

from planner.problem.alternatives import relax_choices
from planner.problem.columns import RESIDENT, Problem
from planner.problem.copies import CopyProblem


def bound(problem: Problem) -> int:
    """Ticks that no order takes less than, under any alternatives. O(tasks + reads)."""
    problem = relax_choices(problem)
    must = ~problem.optional
    engines = [int(problem.cost[must & (problem.engine == engine)].sum()) for engine in np.unique(problem.engine)]
    return max(*engines, _longest_chain(problem), 0)


def bound_with_copies(copies: CopyProblem) -> int:
    """Ticks that no order with copies takes less than; collectives that do not overlap count as compute."""
    return bound(copies.original) if copies.overlaps else copies.original.single_run_ticks()


def _longest_chain(problem: Problem) -> int:
    """Ticks of the costliest chain of tasks that must run, each of which reads what the one before writes.

    Another writer of a buffer may end before its producer does, so that only the producer's start counts for it.
    """
    reads, cost, must = problem.reads.lists(), problem.cost.tolist(), (~problem.optional).tolist()
    writers = np.bincount(problem.writes.index, minlength=problem.buffers).tolist()
    producer, hold = problem.producer().tolist(), problem.hold.tolist()
    start, longest = [0] * problem.tasks, 0
    for task, row in enumerate(reads):
        for buffer in row:
            p = producer[buffer]
            if 0 <= p < task and hold[buffer] != RESIDENT:  # a resident exists from the start
                start[task] = max(start[task], start[p] + (cost[p] if writers[buffer] == 1 else 0))
        if must[task]:
            longest = max(longest, start[task] + cost[task])
    return longest
