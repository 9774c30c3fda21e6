"""First-of-set bound: one task of a set runs first, and at that step none of the others has run.

    w(1)   w(2)   w(3)        no task precedes another, each needs much memory: the weight gradients of an unrolled
     └─ before the others     recurrent net, which a free order may run at any time

With a free order, the cut at one step must assume that all such tasks may have run before it. In every order one task
of the set is the first, so the minimum over the set of the cost at each one's first run is a bound. It is computed
by the branch and bound of `step_branch_and_bound.py` with one root for each task.

Source: the project's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from graph.cancellation import seconds_left
from planner.bounds.claims import Claim, cost_claim
from planner.bounds.step_branch_and_bound import PROOF_PART, BranchNode, grow_trees, make_branch, tree_proof
from planner.bounds.step_network import StepModel, effort_share
from planner.problem import Problem
from planner.problem.plan import Goal

# Minimum memory need of the tasks of a set, as a share of the largest in their phase; one set per share.
NEED_SHARES = (1.0, 0.5, 0.25)
# Limits on a set: its tasks, and the arcs of all their networks.
MAX_SET_TASKS, MAX_ARCS = 100, 600_000
# Tasks of the largest problem whose sets are counted in advance.
MAX_COUNTED_TASKS = 20_000


def bound(problem: Problem, goal: Goal, budget_bytes: int, least: int) -> Claim | None:
    """The claim of the best set, or None if none proves more than `least` ticks or the order is given.

    Shorter goals (in seconds) get smaller sets.
    """
    if goal.order_is_given:
        return None  # the tasks that have run are known there
    best, once = None, problem.single_run_ticks()
    for tasks in candidate_sets(StepModel(problem, goal, budget_bytes), effort_share(goal)):
        model = StepModel(problem, goal, budget_bytes, firsts=tasks)
        began, roots = time.monotonic(), list[BranchNode]()
        for task in tasks:
            roots.append(make_branch(model, task))
            if once + roots[-1].ticks <= least:
                break
        else:
            least = once + grow_trees(model, roots, kept=_kept(time.monotonic() - began))
            proof = {"first_of": [tree_proof(model, root) for root in roots]}
            best = cost_claim(goal, budget_bytes, least, "first-of-some", tasks, proof)
    return best


def arcs(problem: Problem, goal: Goal, budget_bytes: int) -> int:
    """Arcs of the networks of the largest set of `bound`, one network for each task.

    0 without a set, and with more than MAX_COUNTED_TASKS tasks, where finding out takes too long.
    """
    if goal.order_is_given or problem.tasks > MAX_COUNTED_TASKS:
        return 0
    model = StepModel(problem, goal, budget_bytes)
    return max(map(len, candidate_sets(model, effort_share(goal))), default=0) * _arcs_of_task(model)


def _kept(taken: float) -> float:
    """Share of the time left that the trees of a set leave to their proofs; the roots of these were `taken` seconds."""
    left = seconds_left()
    return max(PROOF_PART, min(1.0, taken / left) if left > 0 else 1.0)


def _arcs_of_task(model: StepModel) -> int:
    """Arcs of the network at the first run of a task, about."""
    return max(1, len(model.read) + model.problem.tasks)


def candidate_sets(model: StepModel, share: float = 1.0) -> Iterator[list[int]]:
    """Sets of non-optional tasks of one phase that need much memory, none of which precedes another.

    A `share` below 1 gives smaller sets.
    """
    max_tasks = min(MAX_SET_TASKS, int(MAX_ARCS * share) // _arcs_of_task(model))
    if max_tasks < 2:
        return
    problem, need, known = model.problem, model.need(), set[tuple[int, ...]]()
    phase = problem.phase if model.goal.strict_phases else problem.phase * 0
    for now in np.unique(phase):
        in_phase = np.flatnonzero((phase == now) & ~problem.optional)
        for share in NEED_SHARES:
            large = in_phase[need[in_phase] >= share * need[in_phase].max(initial=0)]
            tasks = np.setdiff1d(large, np.flatnonzero(model.behind(large)))
            if 1 < len(tasks) <= max_tasks and tuple(tasks) not in known:
                known.add(tuple(tasks))
                yield tasks.tolist()
