"""Problems with copies: the columns under alternatives, and collectives in line with compute."""

from __future__ import annotations

import random

import numpy as np

from planner.problem import COMMUNICATION, TO_HOST, Problem, schedule
from planner.problem.copies import Link, copyable, with_copies
from planner.problem.plan import Goal
from tests.planner.drawn import problem_of
from tests.planner.problem.test_alternatives import vectors, with_random_choices
from tests.planner.random_problems import training_problem


def columns(problem: Problem) -> list[list[int]]:
    relations = (problem.reads, problem.writes)
    return [problem.cost.tolist(), problem.workspace.tolist(), problem.size.tolist(), *(r.lists() for r in relations)]


def test_copies_under_alternatives_are_copies_of_the_resolved_problem() -> None:
    rng = random.Random(4)
    for _ in range(30):
        problem = with_random_choices(rng, training_problem(rng, 3))
        link, buffers = Link(2.0, 3.0, launch_seconds=0.5), copyable(problem)
        copies = with_copies(problem, link, buffers)
        for vector in vectors(problem):
            under = copies.under(vector)
            assert columns(under.problem) == columns(with_copies(under.original, link, buffers).problem)


def test_a_collective_beside_copies_takes_as_long_as_in_a_plan_without() -> None:
    problem = problem_of([[], [], [0, 1]], [[0], [1], [2]], cost=[4, 5, 1], engine=[0, COMMUNICATION, 0])
    copies = with_copies(problem, Link(1.0, 1.0), copyable(problem))
    assert schedule.score(copies.problem, Goal(), np.arange(3)).cost == problem.single_run_ticks()
    assert set(copies.problem.engine.tolist()) >= {0, TO_HOST} and COMMUNICATION not in copies.problem.engine
