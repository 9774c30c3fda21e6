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

from planner.bounds.claims import Claim, of_cost
from planner.bounds.step_branch_and_bound import Node, least_of_grown, node_of, proof_of
from planner.bounds.step_network import FULL_SECONDS, Moments
from planner.problem import Problem
from planner.problem.plan import Goal

# Tasks of a set need at least one of these shares of what the neediest of their phase needs.
SHARES = (1.0, 0.5, 0.25)
# Tasks of a set; fewer where so many arcs are looked at before.
MOST, ARCS = 100, 600_000


def bound(problem: Problem, goal: Goal, budget_bytes: int, least: int) -> Claim | None:
    """The highest bound of a set; None where none says more than `least` ticks, and in a given order.

    A goal of fewer seconds has smaller sets.
    """
    if goal.order_is_given:
        return None  # what has run is known there
    best, once = None, int(problem.cost[~problem.optional].sum())
    for tasks in sets(Moments(problem, goal, budget_bytes)):
        moments = Moments(problem, goal, budget_bytes, firsts=tasks)
        roots: list[Node] = []
        for task in tasks:
            roots.append(node_of(moments, task))
            if once + roots[-1].ticks <= least:
                break
        else:
            least = once + least_of_grown(moments, roots)
            proof = {"first_of": [proof_of(moments, root) for root in roots]}
            best = of_cost(goal, budget_bytes, least, "first-of-some", tasks, proof)
    return best


def sets(moments: Moments) -> Iterator[list[int]]:
    """Tasks of one phase that have to run and need much, without those that another of them precedes."""
    problem, need, known = moments.problem, moments.need(), set[tuple[int, ...]]()
    arcs = int(ARCS * min(1.0, moments.goal.seconds / FULL_SECONDS))
    most = min(MOST, arcs // max(1, len(moments.read) + problem.tasks))
    phase = problem.phase if moments.goal.strict_phases else problem.phase * 0
    for now in np.unique(phase):
        there = np.flatnonzero((phase == now) & ~problem.optional)
        for share in SHARES:
            needy = there[need[there] >= share * need[there].max(initial=0)]
            tasks = np.setdiff1d(needy, np.flatnonzero(moments.behind(needy)))
            if 1 < len(tasks) <= most and tuple(tasks) not in known:
                known.add(tuple(tasks))
                yield tasks.tolist()
