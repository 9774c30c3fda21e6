"""Checkpoint advice: worth of each checkpoint, and the best set of the same size."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from planner.advice import checkpoint_advice
from planner.advice.checkpoint_advice import candidates, compare_checkpoints
from planner.problem import Problem
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.recompute import order_keeping
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, problem_of
from tests.planner.random_problems import training_problem

LOWEST = Goal(budget_bytes=0)


def monitor(problem: Problem, goal: Goal = LOWEST, iterations: int = 100_000) -> Monitor:
    return Monitor(lambda order: goal_score(problem, goal, order), iterations=iterations)


def chain(length: int) -> Problem:
    """A chain of `length` forward tasks, and its gradients, each reading one forward buffer."""
    reads = [[], *([i] for i in range(length - 1)), *([length - 1 + i, length - 1 - i] for i in range(length))]
    reads[length] = [length - 1]
    return problem_of(reads, [[i] for i in range(2 * length)], phase=[0] * length + [1] * length)


def test_the_worth_of_a_checkpoint_is_the_cost_of_the_plan_without_it():
    problem = drawn("a>b b>c c>d d>e e>f c>f f>g b>g g>h a>h", backward="fgh")
    advice = compare_checkpoints(problem, LOWEST, monitor(problem), np.array([0, 2]))
    assert advice.given == (0, 2)
    assert [b for b, _ in advice.dropped] == [0, 2]
    assert {b for b, _ in advice.added} == {1, 3, 4}
    for keep, score in [((2,), advice.dropped[0][1]), ((0,), advice.dropped[1][1])]:
        assert score == goal_score(problem, LOWEST, order_keeping(problem, np.array(keep)))
    for b, score in advice.added:
        assert score == goal_score(problem, LOWEST, order_keeping(problem, np.array([0, 2, b])))
    assert [score for _, score in advice.added] == sorted(score for _, score in advice.added)


def test_checkpoints_at_one_end_of_a_chain_are_spread_over_it():
    problem = chain(25)
    advice = compare_checkpoints(problem, LOWEST, monitor(problem), np.array([0, 1, 2, 3]))
    assert len(advice.best) == 4
    assert advice.complete and not advice.all_tried
    assert advice.best_score.peak_bytes < advice.score.peak_bytes
    assert advice.best_score.peak_bytes <= 10  # two roots


@pytest.mark.parametrize("seed", range(12))
def test_few_sets_are_all_tried(seed):
    rng = random.Random(seed)
    problem = training_problem(rng, 6)
    free = candidates(problem, LOWEST)
    given = rng.sample(free, min(len(free), 2))
    advice = compare_checkpoints(problem, LOWEST, monitor(problem), np.array(given, np.int64))
    every = [
        goal_score(problem, LOWEST, order_keeping(problem, np.array(keep, np.int64)))
        for keep in itertools.combinations(free, len(given))
    ]
    assert advice.all_tried and advice.best_score == min(every)


def test_a_stop_gives_the_best_so_far_and_says_so():
    problem = chain(25)
    stopped = compare_checkpoints(problem, LOWEST, monitor(problem, iterations=40), np.array([0, 1, 2, 3]))
    assert not stopped.complete
    assert stopped.best_score <= stopped.score
    again = compare_checkpoints(problem, LOWEST, monitor(problem, iterations=40), np.array([0, 1, 2, 3]))
    assert again == stopped


def test_without_checkpoints_only_additions_are_reported(monkeypatch):
    problem = chain(8)
    advice = compare_checkpoints(problem, LOWEST, monitor(problem), np.zeros(0, np.int64))
    assert (advice.best, advice.dropped) == ((), [])
    assert len(advice.added) == 8
    monkeypatch.setattr(checkpoint_advice, "MAX_ADDED", 3)
    assert len(compare_checkpoints(problem, LOWEST, monitor(problem), np.zeros(0, np.int64)).added) == 3
