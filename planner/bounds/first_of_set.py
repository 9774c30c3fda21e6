"""Whichever of some tasks runs first: at its moment none of the others has, and what they read is needed still.

    w(1)   w(2)   w(3)        none of them precedes another, each needs much: all gradients of the weights of an
     └─ before the others     unrolled recurrent net, of which a free order may run any at any time

Where the order is free, a moment alone must reckon with all those tasks having run before it that may have; of a
set of tasks one is first in every order. The least over the set of what these moments cost is a bound, grown as
the tree of `branched_moment.py` with one root for each task.

Source: the project's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.bounds.claims import Claim, cost_claim
from planner.bounds.step_branch_and_bound import BranchNode, grow_trees, make_branch, tree_proof
from planner.bounds.step_network import FULL_SECONDS, StepModel
from planner.problem import Problem
from planner.problem.plan import Goal

# Tasks of a set need at least one of these shares of what the neediest of their phase needs.
NEED_SHARES = (1.0, 0.5, 0.25)
# Tasks of a set; fewer where so many arcs are looked at before.
MAX_SET_TASKS, MAX_ARCS = 100, 600_000


def bound(problem: Problem, goal: Goal, budget_bytes: int, least: int) -> Claim | None:
    """The highest bound of a set; None where none says more than `least` ticks, and in a given order.

    A goal of fewer seconds has smaller sets.
    """
    if goal.order_is_given:
        return None  # what has run is known there
    best, once = None, int(problem.cost[~problem.optional].sum())
    for tasks in candidate_sets(StepModel(problem, goal, budget_bytes)):
        moments = StepModel(problem, goal, budget_bytes, firsts=tasks)
        roots: list[BranchNode] = []
        for task in tasks:
            roots.append(make_branch(moments, task))
            if once + roots[-1].ticks <= least:
                break
        else:
            least = once + grow_trees(moments, roots)
            proof = {"first_of": [tree_proof(moments, root) for root in roots]}
            best = cost_claim(goal, budget_bytes, least, "first-of-some", tasks, proof)
    return best


def candidate_sets(moments: StepModel) -> Iterator[list[int]]:
    """Tasks of one phase that have to run and need much, without those that another of them precedes."""
    problem, need, known = moments.problem, moments.need(), set[tuple[int, ...]]()
    arcs = int(MAX_ARCS * min(1.0, moments.goal.seconds / FULL_SECONDS))
    most = min(MAX_SET_TASKS, arcs // max(1, len(moments.read) + problem.tasks))
    phase = problem.phase if moments.goal.strict_phases else problem.phase * 0
    for now in np.unique(phase):
        there = np.flatnonzero((phase == now) & ~problem.optional)
        for share in NEED_SHARES:
            needy = there[need[there] >= share * need[there].max(initial=0)]
            tasks = np.setdiff1d(needy, np.flatnonzero(moments.behind(needy)))
            if 1 < len(tasks) <= most and tuple(tasks) not in known:
                known.add(tuple(tasks))
                yield tasks.tolist()
