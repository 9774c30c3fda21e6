"""PyTorch's partition: the fewest bytes that separate the way out from the way back, and what a budget adds."""

from __future__ import annotations

import itertools
import random

import numpy as np

from planner.algorithms.heuristics import pytorch_min_cut
from planner.problem import TO_THE_END, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn


def test_the_small_value_between_two_large_ones_is_saved():
    #   a ── b ── c   d reads c, e reads a; a and c can be made from b's little output or from nothing
    problem = drawn("a>b b>c c>d d>e c>e", size={"a": 9, "b": 1, "c": 9}, backward="de", never="a")
    partition = pytorch_min_cut.MinCutPartition(problem, base_order(problem))
    assert partition.saved(0).tolist() == [1]
    assert partition.saved(9).tolist() == [2]


def test_what_may_not_repeat_and_is_read_is_saved():
    problem = drawn("a>b b>c a>c", size={"a": 5}, backward="c", never="ab")
    assert pytorch_min_cut.MinCutPartition(problem, base_order(problem)).saved(0).tolist() == [0, 1]


def test_nothing_is_saved_of_values_that_are_held_to_the_end():
    problem = drawn("a>b b>c", hold=TO_THE_END, backward="c")
    assert pytorch_min_cut.MinCutPartition(problem, base_order(problem)).saved(0).tolist() == []


def test_the_knapsack_takes_what_is_worth_most():
    rng = random.Random(4)
    for _ in range(40):
        size, value = np.array(rng.choices(range(1, 9), k=6)), np.array(rng.choices(range(1, 9), k=6))
        room = rng.randint(0, 30)
        chosen = pytorch_min_cut.knapsack(size, value, room)
        assert size[chosen].sum() <= room
        sets = (list(each) for k in range(7) for each in itertools.combinations(range(6), k))
        assert value[chosen].sum() == max(value[each].sum() for each in sets if size[each].sum() <= room)


def test_a_looser_budget_saves_more_and_costs_less():
    #   a is wanted last and b is small, so that a is best made again, then c and d
    problem = drawn(
        "a>b b>c c>d d>e e>f d>g f>g c>h g>h h>i a>i", size={"a": 8, "b": 1, "c": 4, "d": 4, "e": 4}, backward="fghi"
    )
    peak = liveness.peak(problem, base_order(problem))

    def cost(budget: int) -> int:
        goal = Goal(budget)
        order = pytorch_min_cut.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order)))
        assert liveness.peak(problem, order) <= budget
        return liveness.cost(problem, order)

    assert problem.cost.sum() == cost(peak) < cost(peak - 1) <= cost(peak - 4)
