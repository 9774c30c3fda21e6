"""The search with copies against the least makespan of small problems."""

from __future__ import annotations

import random

import pytest

from tests.planner.copy_problems import excess, small_copy_problem


def excesses(seeds: range | list[int]) -> list[float]:
    """Of the problem of each seed: found makespan over the least one, less 1; infinite for a missed budget."""
    return [excess(*small_copy_problem(random.Random(seed))) for seed in seeds]


def test_plans_with_copies_are_the_fastest_of_small_problems() -> None:
    #   48: a copy; 75: a copy and recomputations beside it, without which no plan is within the budget
    assert excesses([48, 75]) == [0, 0]


@pytest.mark.heavy
def test_plans_with_copies_are_the_fastest_of_more_small_problems() -> None:
    assert not any(excesses(range(20)))
