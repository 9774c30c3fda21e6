"""Until when a buffer can be recomputed, and for how long those must be held that cannot.

w ── a ── b ── c        w is updated at step 9: a, and b and c that are made from it, can be recomputed up to there
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.problem import TO_LAST_READ, Problem
from planner.problem.plan import Order
from planner.problem.recompute import can_recompute, last_recompute_step

FOREVER = 2**62


class RegainLimits(NamedTuple):
    """For each buffer; steps are those of the base order."""

    evictable: np.ndarray  # bool[m]  whether it can be recomputed at all
    until: np.ndarray  # int64[m]  last step at which it can be; if it cannot, last step at which it may be read


def regain_limits(problem: Problem, base: Order) -> RegainLimits:
    """What a run of the base order may evict, and what it holds. O(reads + writes) time.

    A buffer can be recomputed while its task may run and while all inputs of that task can be recomputed or are held.
    One that cannot be recomputed is held until the last recomputation that may read it.
    """
    order, reads, writes = base.tolist(), problem.reads.lists(), problem.writes.lists()
    recomputable, latest = can_recompute(problem).tolist(), last_recompute_step(problem, base).tolist()
    is_plain = (~problem.has_several_writers() & (problem.hold == TO_LAST_READ)).tolist()
    evictable, limit = [False] * problem.buffers, [FOREVER] * problem.buffers
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
            elif step <= limit[b]:
                last[b] = max(last[b], step)
    return RegainLimits(np.asarray(evictable), np.where(evictable, limit, last))
