"""No order peaks below the largest task."""

from __future__ import annotations

import random

import numpy as np

from planner.bounds import largest_task
from planner.problem import RESIDENT, liveness
from planner.problem.plan import Goal
from tests import oracles
from tests.planner.drawn import drawn, problem_of
from tests.planner.random_problems import random_order, random_problem


def test_no_legal_sequence_peaks_below_the_bound():
    rng = random.Random(9)
    seen = tight = 0
    while seen < 1500:
        problem = random_problem(rng)
        bound = largest_task.bound(problem)
        for _ in range(4):
            order = random_order(rng, problem)
            if oracles.legal(problem, Goal(strict_phases=False), order):
                seen += 1
                peak = liveness.peak(problem, np.array(order, np.int64))
                assert bound.bytes <= peak
                tight += bound.bytes == peak
    assert tight > 100


def test_the_bound_names_the_task_and_counts_workspace_and_residents():
    problem = problem_of([[0], [1]], [[1], [2]], size=[100, 8, 4], hold=[RESIDENT, 0, 0], workspace=[0, 5])
    assert largest_task.bound(problem) == largest_task.LargestTask(100 + 8 + 4 + 5, 1)


def test_a_takeover_is_credited_once():
    problem = drawn("a>b", size={"a": 8, "b": 8}, takeover="a>b")
    assert largest_task.bound(problem) == largest_task.LargestTask(8, 0)


def test_two_outputs_cannot_both_take_the_one_input():
    problem = problem_of([[], [0]], [[0], [1, 2]], size=[8, 8, 8], takeover={1: [0], 2: [0]})
    assert largest_task.bound(problem) == largest_task.LargestTask(16, 1)


def test_a_problem_without_tasks_needs_its_residents():
    assert largest_task.bound(problem_of([], [], 1, size=[7], hold=[RESIDENT])) == largest_task.LargestTask(7, -1)
