"""The bound on the makespan: the busiest engine, or the longest chain; tests/planner/search has the exact oracle."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from planner.bounds import claims, makespan
from planner.problem import COMMUNICATION, COMPUTE, Problem, schedule
from planner.problem.copies import Link, copyable, with_copies
from planner.problem.plan import Goal
from tests import oracles
from tests.planner.drawn import problem_of
from tests.planner.random_problems import random_order, random_problem


def two_engines(reads: list[list[int]]) -> Problem:
    engine = [COMPUTE, COMMUNICATION, COMMUNICATION, COMPUTE]
    return problem_of(reads, [[t] for t in range(4)], 4, size=[1] * 4, cost=[2, 3, 4, 5], engine=engine)


def test_the_busiest_engine_or_the_longest_chain_limits_the_makespan() -> None:
    assert makespan.bound(two_engines([[], [], [], []])) == 7  # engines: 2 + 5, 3 + 4
    assert makespan.bound(two_engines([[], [0], [0], [2]])) == 11  # 2 + 4 + 5
    assert makespan.bound(problem_of([], [], 0, size=[], cost=[], engine=[])) == 0


def test_a_second_writer_of_a_buffer_may_end_before_the_first() -> None:
    problem = problem_of(
        [[], [], [0]], [[0], [0], [1]], 2, size=[1, 1], cost=[9, 1, 1], engine=[COMMUNICATION, COMPUTE, COMPUTE]
    )
    order = np.array([0, 1, 2])
    assert makespan.bound(problem) == 9 == schedule.score(problem, Goal(strict_phases=False), order).cost


def test_no_order_takes_less_than_the_bound() -> None:
    rng = random.Random(3)
    for _ in range(300):
        problem = random_problem(rng)
        engine = np.array([rng.choice([COMPUTE, COMMUNICATION]) for _ in range(problem.tasks)], np.int8)
        problem = replace(problem, engine=engine)
        order = random_order(rng, problem)
        if not oracles.legal(problem, Goal(strict_phases=False), order):
            continue
        copies = with_copies(problem, Link(8, 8), copyable(problem), overlaps=True)
        least = makespan.bound(problem)
        assert least <= schedule.score(problem, Goal(strict_phases=False), np.array(order, np.int64)).cost
        assert claims.rejection_reason(problem, [claims.makespan_claim(least)]) == ""
        assert claims.rejection_reason(problem, [claims.makespan_claim(least + 1)])
        assert makespan.bound(copies.problem) <= least
