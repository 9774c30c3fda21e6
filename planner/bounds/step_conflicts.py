"""Steps at which the best choice of another step costs more: what the bound of that one step does not see.

    step s   the cheapest choice within the budget keeps a and recomputes b: 12 ticks
    step t   with a and without b at step s, c has to be recomputed too: 15 ticks      t conflicts with s

A linear program over both steps, with the buffers fixed that are live and not live at the first, finds the second cost.

Source: the project's own.
"""

from __future__ import annotations

import math

from graph.cancellation import seconds_left
from planner.bounds.step_branch_and_bound import FULL_TREE_SECONDS, BranchNode, nodes_of
from planner.bounds.step_lp import StepLp
from planner.bounds.step_network import UNKNOWN, StepModel

# Limits on the steps tried, and on the rows of all their linear programs.
MAX_TRIED, MAX_ROWS = 32, 60_000
# Least cost above that of the choice, as a share of it.
MIN_RISE = 1e-6


def conflicting_steps(model: StepModel, root: BranchNode, count: int) -> list[int]:
    """Up to `count` tasks whose steps raise the cost of the best choice in the tree of a step, the largest rise first.

    The steps of highest memory are tried. Empty without a time limit, which alone ends it early, and for goals of few
    seconds, where the programs would take the time of the tree.
    """
    met = [node.within for node in nodes_of(root) if node.within is not None]
    if not met or seconds_left() == math.inf or model.goal.seconds < FULL_TREE_SECONDS:
        return []
    choice, known, rows, rises = min(met, key=lambda choice: choice.ticks), model.known(root.task), 0, []
    live = set(choice.live)
    others = [t for t in model.candidate_tasks().tolist() if t != root.task and known[t] != UNKNOWN]
    for other in others[:MAX_TRIED]:
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
