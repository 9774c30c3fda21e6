"""Steps that the bound of another step does not see: the best choice of that step costs more, or too many bytes, there.

    step s   the cheapest choice within the budget keeps a and recomputes b: 12 ticks
    step t   with a and without b at step s, c has to be recomputed too: 15 ticks      t conflicts with s
    step u   b, recomputed right before it is read, does not fit beside what is live   u is overfull

For the first, a linear program over both steps, with the buffers fixed that are live and not live at the first, finds
the second cost. For the second, the choice is made an order.

Source: the project's own.
"""

from __future__ import annotations

import math

import numpy as np

from graph.cancellation import seconds_left
from planner.bounds.step_branch_and_bound import FULL_TREE_SECONDS, BranchNode, nodes_of
from planner.bounds.step_lp import StepLp
from planner.bounds.step_network import UNKNOWN, CutPoint, StepModel
from planner.problem import liveness
from planner.problem.columns import true_intervals
from planner.problem.recompute import is_first_run, order_keeping_live

# Limits on the steps tried, and on the rows of all their linear programs.
MAX_TRIED, MAX_ROWS = 32, 60_000
# Least cost above that of the choice, as a share of it.
MIN_RISE = 1e-6


def conflicting_steps(model: StepModel, root: BranchNode, count: int) -> list[int]:
    """Up to `count` tasks whose steps raise the cost of the best choice in the tree of a step, the largest rise first.

    The steps at which the order of that choice is over the budget are tried, in the order of their memory in the
    baseline: at the others that choice is possible. Empty without a time limit and for goals of few seconds.
    """
    if (choice := _best_choice(model, root)) is None:
        return []
    rows, rises, live, known = 0, list[tuple[float, int]](), set(choice.live), model.known(root.task)
    over = {task for row in _overfull_runs(model, root, choice) for _, task in row}
    for other in [task for task in model.candidate_tasks().tolist() if task in over][:MAX_TRIED]:
        chain = [other, root.task] if known[other] else [root.task, other]
        lp = StepLp(model, chain, [(0, 1), (1, 2), (0, 2)], grains=[root.grain])
        at = chain.index(root.task)
        found = lp.solved({name: int(name[2] in live) for name in lp.column if name[:2] == ("L", at)})
        if found is not None and found.ticks > choice.ticks * (1 + MIN_RISE):
            rises.append((-found.ticks, other))
        rows += len(lp.rows.least)
        if rows > MAX_ROWS:
            break
    return [other for _, other in sorted(rises)[:count]]


def overfull_steps(model: StepModel, root: BranchNode, count: int) -> list[int]:
    """Up to `count` tasks at whose steps the order of the best choice in the tree of a step is over the budget.

    Of successive steps over the budget, the first run that holds the most bytes counts; those with the most come first.
    Empty without a time limit and for goals of few seconds.
    """
    if (choice := _best_choice(model, root)) is None:
        return []
    fullest = sorted(min(row) for row in _overfull_runs(model, root, choice))
    return [task for _, task in fullest[:count]]


def _overfull_runs(model: StepModel, root: BranchNode, choice: CutPoint) -> list[list[tuple[int, int]]]:
    """For each run of successive steps over the budget in the order of a choice: (- bytes over it, task) of first runs.

    Each task runs before the step of the tree in every sequence, or behind it in every one.
    """
    problem, known = model.problem, model.known(root.task)
    order = order_keeping_live(problem, model.order, root.task, choice.live)
    over = liveness.profile(problem, order) - model.budget_bytes
    counts = is_first_run(problem, order) & (known[order] != UNKNOWN) & (order != root.task)
    runs = [start + np.flatnonzero(counts[start:stop]) for start, stop in true_intervals(over > 0)]
    return [list(zip((-over[run]).tolist(), order[run].tolist(), strict=True)) for run in runs if len(run)]


def _best_choice(model: StepModel, root: BranchNode) -> CutPoint | None:
    """The best choice in the tree of a step; None if none is known, without a time limit and for goals of few seconds.

    A time limit alone ends linear programs early, and in a few seconds they would take the time of the tree.
    """
    met = [node.within for node in nodes_of(root) if node.within is not None]
    if seconds_left() == math.inf or model.goal.seconds < FULL_TREE_SECONDS:
        return None
    return min(met, key=lambda choice: choice.ticks, default=None)
