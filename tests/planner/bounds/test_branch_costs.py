"""What earlier branches cost decides on which variable a tree branches next."""

from __future__ import annotations

from planner.bounds.branch_costs import BranchCosts
from planner.bounds.step_network import StepModel
from planner.problem.plan import Goal
from tests.planner.drawn import drawn

A, B, DONE = ("L", 0, 0), ("L", 0, 1), ("D", 0, 2)


def branch_costs() -> BranchCosts:
    problem = drawn("a>b b>c", size={"a": 4, "b": 8, "c": 1})
    return BranchCosts(StepModel(problem, Goal(9), 9))


def test_without_branches_so_far_the_buffer_with_the_most_bytes_between_is_branched_on():
    assert branch_costs().best({A: 0.5, B: 0.5}) == B
    assert branch_costs().best({A: 0.5, B: 0.01}) == A
    assert branch_costs().best({DONE: 0.5, A: 0.01}) == A  # buffers come before tasks
    assert branch_costs().best({DONE: 0.5, ("R", 0, 1): 0.5}) == DONE
    assert branch_costs().best({("R", 0, 1): 0.5}) is None


def test_a_buffer_whose_branches_have_cost_more_is_branched_on():
    costs = branch_costs()
    for side, ticks in enumerate((3.0, 6.0)):
        costs.learn(A, 0.25, side, ticks)  # 12 ticks per unit down, 8 up; a byte of the others costs 3 and 2
        costs.learn(B, 0.5, side, 1.0)
    assert costs.best({A: 0.5, B: 0.5}) == A


def test_a_side_that_costs_nothing_does_not_hide_the_other():
    costs = branch_costs()
    for variable, ticks in ((A, 9.0), (B, 1.0)):
        costs.learn(variable, 0.5, 0, ticks)
        costs.learn(variable, 0.5, 1, 0.0)
    assert costs.best({A: 0.5, B: 0.5}) == A
