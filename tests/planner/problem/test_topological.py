"""Several orders are legal; which is taken changes the peak."""

import random

import numpy as np

from planner.algorithms.heuristics import longest_path
from planner.problem import Csr, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.topological import depth_first, edges, longest_path_first
from planner.search.scores import goal_score
from tests.planner.drawn import problem_of


def after(tasks, pairs):
    return Csr.of([[b for a, b in pairs if a == task] for task in range(tasks)])


def test_depth_first_and_longest_path_first_are_different_orders():
    #   0 ──▶ 1 ──▶ 3        4 ──▶ 5
    #         2 ──▶ 3
    graph = after(6, [(0, 1), (1, 3), (2, 3), (4, 5)])
    assert depth_first(graph).tolist() == [4, 5, 2, 0, 1, 3]
    assert longest_path_first(graph).tolist() == [0, 1, 2, 3, 4, 5]


def test_every_order_is_legal():
    for seed in range(100):
        rng = random.Random(seed)
        tasks = rng.randint(0, 12)
        pairs = [(a, b) for b in range(tasks) for a in range(b) if rng.random() < 0.2]
        for rank in (depth_first(after(tasks, pairs)), longest_path_first(after(tasks, pairs))):
            place = {task: i for i, task in enumerate(rank.tolist())}
            assert len(place) == tasks
            assert all(place[a] < place[b] for a, b in pairs)


def test_in_place_chains_are_totally_ordered():
    #   b written over three times: each writer waits for the one before and for its readers
    problem = problem_of([[0], [1], [2]], [[1], [2], [3]], 4)
    assert edges(problem).lists() == [[1], [2], []]


def test_a_short_branch_is_computed_right_before_it_is_joined():
    #   0 ──▶ 1 ──▶ 2 ──▶ 4      buffer 3 is large and needed by 4 only: document order holds it all the way
    #   3 ────────────────▶ 4
    problem = problem_of([[], [], [1], [2], [0, 3]], [[0], [1], [2], [3], [4]], size=[100, 10, 10, 10, 1])
    goal = Goal(budget_bytes=0)
    order = longest_path.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order)))
    assert order.tolist() == [1, 2, 3, 0, 4]
    assert liveness.peak(problem, order) < liveness.peak(problem, np.arange(5))
    kept = longest_path.plan(
        problem, Goal(0, order_is_given=True), Monitor(lambda order: goal_score(problem, goal, order))
    )
    assert kept.tolist() == [0, 1, 2, 3, 4]


def test_who_reads_only_a_shape_waits_for_who_makes_it():
    problem = problem_of([[], [], [0]], [[0], [1], [2]], shape_reads=[[], [0], [1]])
    assert edges(problem).lists() == [[1, 2], [2], []]
