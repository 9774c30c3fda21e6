"""Eviction by cost over size times staleness."""

from __future__ import annotations

import pytest

from planner.algorithms.heuristics import dtr
from planner.problem import Problem, liveness
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.problem.recompute import base_order
from planner.search.scores import goal_score
from tests.planner.drawn import drawn, letters_of


def planned(problem: Problem, under: int) -> str:
    """The plan with so many bytes less than the peak."""
    goal = Goal(liveness.peak(problem, base_order(problem)) - under)
    return letters_of(dtr.plan(problem, goal, Monitor(lambda order: goal_score(problem, goal, order))))


#: a and b are both wanted at the end, and four bytes too many while d runs
ARCS = "a>c b>c c>d d>e a>f b>f e>f"


@pytest.mark.parametrize(
    ("size", "cost", "again"),
    [
        ({"a": 4, "b": 4}, {"a": 9, "b": 2}, "b"),  # the cheaper one is evicted
        ({"a": 4, "b": 4}, {"a": 2, "b": 9}, "a"),
        ({"a": 8, "b": 4}, {"a": 3, "b": 3}, "a"),  # of equal cost the larger one
    ],
)
def test_what_is_cheap_and_large_goes_first(size, cost, again):
    problem = drawn(ARCS, size={**size, "c": 4, "d": 4, "e": 1}, cost=cost)
    assert planned(problem, 4) == f"abcde{again}f"


def test_of_equals_the_stalest_goes():
    #   b is read once more than a before room is short
    problem = drawn("a>b a>c b>c b>d c>d d>e e>f a>g b>g f>g", size={"a": 4, "b": 4, "c": 1, "d": 4, "e": 6})
    assert planned(problem, 1) == "abcdefag"


def test_what_would_have_to_be_made_first_counts_as_cost():
    #   b alone is cheap, but a is gone once it is evicted; d is dearer than b and made from what stays
    arcs = "a>b x>d b>e d>e e>f f>g b>h d>h g>h".replace("x", "c")
    problem = drawn(arcs, size={"a": 9, "b": 4, "c": 0, "d": 4, "f": 6}, cost={"a": 9, "b": 1, "d": 2})
    assert planned(problem, 1) == "abcdefgdh"


def test_a_budget_of_the_peak_evicts_nothing():
    assert planned(drawn(ARCS), 0) == "abcdef"
