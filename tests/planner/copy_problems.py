"""Small problems with copy engines, and how far the search is from the least makespan of each.

Shared by the tests and by `bench/offload.py --random`.
"""

from __future__ import annotations

import random

import numpy as np

from planner.bounds import held_at_end, largest_task
from planner.problem import TO_LAST_READ, TO_THE_END, liveness, schedule
from planner.problem.copies import CopyProblem, Link, copyable, with_copies
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal, Order, Score
from planner.problem.recompute import base_order
from planner.search import lexicographic, offload
from planner.search.portfolio import goal_score
from tests.planner.drawn import problem_of
from tests.planner.engine_optimum import Walks

#: Tasks, copies included.
MAX_TASKS = 8
#: Iterations of the search without copies, and of the one with copies.
ITERATIONS, COPY_ITERATIONS = 2_000, 12_000


def small_copy_problem(rng: random.Random) -> tuple[CopyProblem, Goal]:
    """A chain whose second half reads values of the first, copies of some of them, and a budget below its peak."""
    while True:
        n = rng.randint(4, 6)
        half = n // 2
        reads = [[], *([t - 1] for t in range(1, n))]
        for t in range(half, n):
            reads[t] = sorted({*reads[t], *rng.sample(range(t - 1), rng.choice([1, 1, 2]) if t > 2 else 1)})
        problem = problem_of(
            reads,
            [[t] for t in range(n)],
            n,
            size=[rng.choice([1, 2, 3, 4, 6, 9]) for _ in range(n)],
            cost=[rng.randint(1, 6) for _ in range(n)],
            workspace=[rng.choice([0, 0, 0, 2]) for _ in range(n)],
            hold=[TO_LAST_READ] * (n - 1) + [TO_THE_END],
        )
        link = Link(rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4, 8]), rng.random() < 0.4, rng.choice([0, 0, 1]))
        buffers = copyable(problem)
        some = np.sort(np.array(rng.sample(buffers.tolist(), min(len(buffers), (MAX_TASKS - n) // 2)), np.int64))
        peak = liveness.peak(problem, base_order(problem, False))
        floor = max(largest_task.bound(problem).bytes, held_at_end.bound(problem))
        if floor < peak:
            host = rng.choice([None, None, 4, 9])
            return with_copies(problem, link, some), Goal(
                rng.randint(floor, peak - 1), None, False, False, host_bytes=host
            )


def planned(copies: CopyProblem, goal: Goal) -> tuple[Order, Score]:
    """What `auto` finds with offload."""
    problem = copies.original
    plain = Monitor(lambda order: goal_score(problem, goal, order), iterations=ITERATIONS)
    seed = lexicographic.search(problem, goal, "auto", plain).order
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=COPY_ITERATIONS)
    order = offload.best_order(copies, goal, [seed], monitor)
    return order, schedule.score(copies.problem, goal, order)


def excess(copies: CopyProblem, goal: Goal) -> float:
    """Found makespan over the least one, less 1; infinite if a budget is missed that some sequence keeps to.

    Raises AssertionError if the search beats the oracle, a bound is above it, or the evaluator does not know its
    sequence.
    """
    _, found = planned(copies, goal)
    longest = 10 * int(copies.problem.cost.sum()) if found.bytes_over_budget else found.cost
    least = Walks(copies.problem, goal).least(longest)
    if least is None:
        assert found.bytes_over_budget, "the search keeps to the budget, the oracle does not"
        return 0.0
    ticks, sequence = least
    assert schedule.score(copies.problem, goal, np.array(sequence, np.int64))[:2] == (0, ticks), sequence
    assert copies.original.single_run_ticks() <= ticks
    return float("inf") if found.bytes_over_budget else found.cost / ticks - 1
