"""Branch and bound for one step: each branch fixes a buffer to be live, or not live, at the step.

The multiplier of `step_cut.py` relaxes a knapsack; the two choices that are best at that multiplier, one over and one
within the budget, differ in some buffers. The tree branches on the largest of them, weakest leaf first. Each leaf
is a cut with its own multiplier, and the minimum over the leaves is the bound.

Source: branch and bound with Lagrangian bounds, Geoffrion, "Lagrangean relaxation for integer programming", 1974.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import Any

from planner.bounds.claims import Claim, cost_claim
from planner.bounds.step_network import FULL_SECONDS, TICK_SCALE, CutPoint, StepModel, StepNetwork
from planner.problem import Problem
from planner.problem.plan import Goal

# Limits on a tree: its leaves, and the arcs of all their networks.
MAX_LEAVES, MAX_ARCS = 200, 150_000
# Networks solved for one leaf.
MAX_CUTS_PER_LEAF = 24


@dataclass(slots=True)
class BranchNode:
    """A node of the tree: fixed buffers, lower bound of the step's cost, and the buffer to branch on."""

    task: int  # at whose first run the step is
    fixed: dict[int, int]  # buffer -> 1: live, 0: not live
    value: int  # lower bound, parts of a tick
    price: int  # multiplier of the bound
    split: int  # buffer to branch on; -1: the best choice is known
    below: tuple[BranchNode, BranchNode] | None = None  # children: the buffer is not live, is live

    @property
    def ticks(self) -> int:
        """The lower bound in whole ticks, rounded up."""
        return -(-self.value // TICK_SCALE)


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int) -> Claim | None:
    """The claim for the step of `task`, or None if the tree proves no more than its root.

    Shorter goals (in seconds) get smaller trees.
    """
    model = StepModel(problem, goal, budget_bytes)
    root = make_branch(model, task)
    ticks = grow_trees(model, [root])
    if root.below is None or ticks <= root.ticks:
        return None
    once = problem.single_run_ticks()
    return cost_claim(goal, budget_bytes, once + ticks, "branched-moment", [task], tree_proof(model, root))


def grow_trees(model: StepModel, roots: list[BranchNode]) -> int:
    """Ticks of the weakest leaf over all trees, once as many leaves are split as the goal's seconds allow."""
    arcs = int(MAX_ARCS * min(1.0, model.goal.seconds / FULL_SECONDS))
    leaves = min(MAX_LEAVES, arcs // max(1, len(model.read) + model.problem.tasks))
    count = itertools.count()
    leaves_by_bound = [(root.value, next(count), root) for root in roots]
    heapq.heapify(leaves_by_bound)
    for _ in range(1, leaves):
        worst = leaves_by_bound[0][2]
        if worst.split < 0:
            break
        heapq.heappop(leaves_by_bound)
        dead, live = (make_branch(model, worst.task, {**worst.fixed, worst.split: state}) for state in (0, 1))
        worst.below = (dead, live)
        for node in worst.below:
            heapq.heappush(leaves_by_bound, (node.value, next(count), node))
    return leaves_by_bound[0][2].ticks


def make_branch(model: StepModel, task: int, fixed: dict[int, int] | None = None) -> BranchNode:
    """The node with its best multiplier under `fixed`, and the largest buffer in which the choices around it differ."""
    fixed = fixed or {}
    network, max_price = StepNetwork(model, task, fixed), model.max_multiplier
    over, within = network.best_at(1), network.best_at(max_price)
    best, price = max((over.at(1), 1), (within.at(max_price), max_price)) if within.bytes > 0 else (over.at(1), 1)
    if within.bytes > 0 or over.bytes <= 0:
        return BranchNode(task, fixed, best, price, -1)
    over, within, bracketed = bracket_budget(network, over, within)
    best, price = max((best, price), bracketed)
    differ = (set(over.live) ^ set(within.live)) - fixed.keys()
    return BranchNode(task, fixed, best, price, max(differ, key=lambda b: (model.size[b], -b), default=-1))


def bracket_budget(
    network: StepNetwork, over: CutPoint, within: CutPoint
) -> tuple[CutPoint, CutPoint, tuple[int, int]]:
    """(best choice over the budget, best choice within it, (bound in parts of a tick, its multiplier)).

    `over` and `within` are the choices to start from, one over the budget and one within.
    """
    best = (0, 1)
    for _ in range(MAX_CUTS_PER_LEAF):
        price = TICK_SCALE * (within.ticks - over.ticks) // max(1, over.bytes - within.bytes)
        price = min(network.model.max_multiplier, max(1, price))
        choice = network.best_at(price)
        best = max(best, (choice.at(price), price))
        if choice.at(price) >= min(over.at(price), within.at(price)):
            break
        over, within = (choice, within) if choice.bytes > 0 else (over, choice)
    return over, within, best


def tree_proof(model: StepModel, node: BranchNode) -> dict[str, Any]:
    """The tree as a proof: for each leaf its multiplier and the flow of its cut."""
    if node.below is not None:
        zero, one = (tree_proof(model, below) for below in node.below)
        return {"branch": ["L", 0, node.split], "zero": zero, "one": one}
    weights = StepNetwork(model, node.task, node.fixed).weights(TICK_SCALE, node.price)
    return {"price": [node.price], "parts": TICK_SCALE, **weights}
