"""Until which step a buffer can be recomputed, and until which step one that cannot is held.

    w ── a ── b ── c        an update of w at step 9 ends the recomputation

of a, and of b and c, which are computed from it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.problem import TO_LAST_READ, Problem
from planner.problem.plan import Order
from planner.problem.recompute import can_recompute, last_recompute_step

ALWAYS = 2**62


class RecomputeLimits(NamedTuple):
    """For each buffer; steps are those of the base order."""

    evictable: np.ndarray  # bool[m]  whether it can be recomputed
    until: np.ndarray  # int64[m]  last step before which it can be; if it cannot, the last step at which it may be read


def recompute_limits(problem: Problem, base: Order) -> RecomputeLimits:
    """The buffers that a run of the base order may evict, and how long it holds the others. O(reads + writes) time.

    A buffer can be recomputed while its task may run, and while all inputs of that task can be recomputed or are held.
    One that cannot be recomputed, such as the result of a random op, is held until the last recomputation that may read
    it, whether that happens or not.
    """
    order, reads, writes = base.tolist(), problem.reads.lists(), problem.writes.lists()
    recomputable, latest = can_recompute(problem).tolist(), last_recompute_step(problem, base).tolist()
    has_bytes = problem.planned_size() > 0  # buffers without bytes are held from their first write
    is_plain = (has_bytes & ~problem.has_several_writers() & (problem.hold == TO_LAST_READ)).tolist()
    evictable, limit = [False] * problem.buffers, [ALWAYS] * problem.buffers
    for task in order:
        if recomputable[task]:
            of_task = min([latest[task], *(limit[b] for b in reads[task])])
            for b in writes[task]:
                if is_plain[b]:
                    evictable[b], limit[b] = True, of_task
    last = np.where(problem.hold == TO_LAST_READ, -1, len(order)).tolist()
    for step in range(len(order) - 1, -1, -1):
        task = order[step]
        needed = max([step, *(last[b] for b in writes[task] if evictable[b])])
        for b in reads[task]:
            if needed <= limit[b]:
                last[b] = max(last[b], needed)
    return RecomputeLimits(np.asarray(evictable, bool), np.where(evictable, limit, last))
