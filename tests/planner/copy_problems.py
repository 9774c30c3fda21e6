"""Small problems with copy engines, and how far the search is from the least makespan of each.

Shared by the tests and by `bench/offload.py --random`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.bounds import held_at_end, largest_task, makespan
from planner.problem import (
    COMMUNICATION,
    COMPUTE,
    FREE,
    NEVER,
    SAME_ORDER,
    TO_LAST_READ,
    TO_THE_END,
    Problem,
    liveness,
    schedule,
)
from planner.problem.alternatives import relax_choices
from planner.problem.copies import CopyProblem, Link, copyable, with_copies
from planner.problem.monitor import Monitor
from planner.problem.plan import Candidate, Goal, Score
from planner.problem.recompute import base_order
from planner.search import lexicographic
from planner.search.offload_choices import best_candidate
from planner.search.scores import goal_score
from planner.verify.checker import apply_choices, check
from tests.planner.drawn import problem_of
from tests.planner.engine_optimum import Walks
from tests.planner.problem.test_alternatives import with_random_choices

#: Tasks, copies included, of a chain and of one with everything.
MAX_TASKS, MAX_TASKS_WITH_EVERYTHING = 8, 10
#: Iterations of the search without copies, and of those with copies: the second where the first misses the optimum.
ITERATIONS, COPY_ITERATIONS = 2_000, (1_500, 12_000)


def small_copy_problem(
    rng: random.Random, more: Callable[[random.Random, Problem], Problem] | None = None, tasks: int = MAX_TASKS
) -> tuple[CopyProblem, Goal]:
    """A chain whose second half reads values of the first, copies of some of them, and a budget below its peak.

    `more` changes the chain; `tasks` limits its tasks, copies included.
    """
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
        if more is not None:
            problem = more(rng, problem)
        link = Link(rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4, 8]), rng.random() < 0.4, rng.choice([0, 0, 1]))
        buffers = copyable(problem)
        some = np.sort(
            np.array(rng.sample(buffers.tolist(), min(len(buffers), (tasks - problem.tasks) // 2)), np.int64)
        )
        peak = liveness.peak(problem, base_order(problem, False))
        relaxed = relax_choices(problem)
        floor = max(largest_task.bound(relaxed).bytes, held_at_end.bound(relaxed))
        if floor < peak:
            host = rng.choice([None, None, 4, 9])
            return with_copies(problem, link, some), Goal(
                rng.randint(floor, peak - 1), None, False, False, host_bytes=host
            )


def with_everything(rng: random.Random, problem: Problem) -> Problem:
    """The chain with tasks that run once, a collective, an optional task and alternatives, each in part of the cases.

    The optional task writes a buffer of another task, as one more way to recompute it. Up to three groups of
    alternatives change costs, workspaces, reads and sizes.
    """
    n = problem.tasks
    rows = {"reads": problem.reads.lists(), "writes": problem.writes.lists()}
    columns = {name: getattr(problem, name).tolist() for name in ("cost", "workspace")}
    repeat, engine = rng.choices([FREE, NEVER], [6, 1], k=n), [COMPUTE] * n
    if rng.random() < 0.4:
        collective = rng.randrange(n)
        repeat[collective], engine[collective] = SAME_ORDER, COMMUNICATION
    has_optional = rng.random() < 0.6
    if has_optional:
        target = rng.randrange(n - 1)
        rows["reads"].append(rng.sample(range(target), min(target, 1)))
        rows["writes"].append([target])
        columns["cost"].append(rng.randint(1, 6))
        columns["workspace"].append(0)
    changed = problem_of(
        rows["reads"],
        rows["writes"],
        problem.buffers,
        size=problem.size,
        hold=problem.hold,
        repeat=[*repeat, *[FREE] * has_optional],
        engine=[*engine, *[COMPUTE] * has_optional],
        optional=[*[False] * n, *[True] * has_optional],
        **columns,
    )
    if rng.random() < 0.5:
        return changed
    changed = with_random_choices(rng, changed)
    cost = np.maximum(1, changed.choices.cost)  # the oracle needs a tick for each task
    return replace(changed, choices=replace(changed.choices, cost=cost))


def small_overlap_problem(rng: random.Random) -> tuple[CopyProblem, Goal]:
    """A problem whose collectives run beside compute, with copies in some cases, and a budget about its peak."""
    n = rng.randint(5, 7)
    reads = [[], *(sorted(rng.sample(range(t), min(t, rng.choice([1, 1, 2])))) for t in range(1, n))]
    collective = [rng.random() < 0.4 for _ in range(n)]
    collective[rng.randrange(n)] = True
    problem = problem_of(
        reads,
        [[t] for t in range(n)],
        n,
        size=[rng.choice([1, 2, 3, 4, 6]) for _ in range(n)],
        cost=[rng.randint(1, 6) for _ in range(n)],
        workspace=[rng.choice([0, 0, 0, 2]) for _ in range(n)],
        hold=[TO_LAST_READ] * (n - 1) + [TO_THE_END],
        repeat=[
            rng.choice([FREE, SAME_ORDER]) if each else rng.choices([FREE, NEVER], [6, 1])[0] for each in collective
        ],
        engine=[COMMUNICATION if each else COMPUTE for each in collective],
    )
    buffers = copyable(problem)
    copied = np.sort(np.array(rng.sample(buffers.tolist(), rng.choice([0, 0, 1])), np.int64))
    peak = liveness.peak(problem, base_order(problem, False))
    floor = max(largest_task.bound(problem).bytes, held_at_end.bound(problem))
    link = Link(rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.random() < 0.4)
    budget = rng.randint(floor, max(floor, peak) + 4)
    return with_copies(problem, link, copied, overlaps=True), Goal(budget, None, False, False)


def planned(copies: CopyProblem, goal: Goal, iterations: int) -> tuple[Candidate, Score]:
    """What `auto` finds with offload in some iterations."""
    problem = copies.original
    plain = Monitor(lambda order: goal_score(problem, goal, order), iterations=ITERATIONS)
    seed = lexicographic.search(problem, goal, "auto", plain)
    monitor = Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)
    found = best_candidate(copies, goal, [seed], monitor)
    return found, schedule.score(copies.problem, goal, found.order, found.choices)


def excess(copies: CopyProblem, goal: Goal) -> float:
    """Found makespan over the least one, less 1; infinite if a budget is missed that some sequence keeps to.

    Raises AssertionError if a search beats the oracle, a bound is above it, or evaluator and checker do not both know
    the sequences of all.
    """
    worse = float("inf")
    for iterations in COPY_ITERATIONS:
        if worse:
            candidate, found = planned(copies, goal, iterations)
            plan = schedule.evaluate(copies.problem, goal, candidate.order, "test", candidate.choices)
            check(copies.problem, goal, plan)
            worse = _excess(copies, goal, found)
    return worse


def _excess(copies: CopyProblem, goal: Goal, found: Score) -> float:
    best: tuple[int, list[int], tuple[int, ...]] | None = None
    for vector in itertools.product(*map(range, copies.problem.choices.counts().tolist())):
        walks = Walks(apply_choices(copies.problem, vector), goal)
        if found.bytes_over_budget:
            if walks.keeps_to_budget():
                return float("inf")
            continue
        least = walks.least(best[0] if best else found.cost)
        if least is not None and (best is None or least[0] < best[0]):
            best = (*least, vector)
    if found.bytes_over_budget:
        return 0.0
    assert best is not None, "the search is within the budget and faster than the oracle"
    ticks, sequence, vector = best
    plan = schedule.evaluate(copies.problem, goal, np.array(sequence, np.int64), "oracle", vector)
    check(copies.problem, goal, plan)
    assert plan.score[:2] == (0, ticks), sequence
    relaxed = relax_choices(copies.original)
    assert makespan.bound_with_copies(replace(copies, original=relaxed)) <= ticks
    assert max(largest_task.bound(relaxed).bytes, held_at_end.bound(relaxed)) <= plan.score.peak_bytes
    return found.cost / ticks - 1
