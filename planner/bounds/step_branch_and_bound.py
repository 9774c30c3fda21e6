"""One moment solved nearly exactly: a tree whose branches say of a buffer that it lies there, or that it does not.

The price of `moment_cut.py` bounds a knapsack by its relaxation; between the two choices that are best at that price
some buffers differ. The tree splits on the largest of them, worst leaf first, and its leaves are cuts with prices of
their own: together they prove the least of what they bound.

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

# Leaves of a tree; fewer where so many arcs are looked at before.
MAX_LEAVES, MAX_ARCS = 200, 150_000
# Networks solved for one leaf.
MAX_CUTS_PER_LEAF = 24


@dataclass(slots=True)
class BranchNode:
    """What is certain of buffers in one part of a tree, what its moment costs at least, and where it splits."""

    task: int  # whose moment it is
    fixed: dict[int, int]
    value: int  # parts of a tick
    price: int
    split: int  # buffer; -1: the best choice is known
    below: tuple[BranchNode, BranchNode] | None = None  # the buffer does not lie there, and does

    @property
    def ticks(self) -> int:
        return -(-self.value // TICK_SCALE)


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int) -> Claim | None:
    """What the moment of the task costs at least; None where the tree says no more than its root.

    A goal of fewer seconds has a smaller tree.
    """
    moments = StepModel(problem, goal, budget_bytes)
    root = make_branch(moments, task)
    ticks = grow_trees(moments, [root])
    if root.below is None or ticks <= root.ticks:
        return None
    once = int(problem.cost[~problem.optional].sum())
    return cost_claim(goal, budget_bytes, once + ticks, "branched-moment", [task], tree_proof(moments, root))


def grow_trees(moments: StepModel, roots: list[BranchNode]) -> int:
    """Ticks that the least leaf of some trees costs, once as many leaves have split as the goal's seconds allow."""
    arcs = int(MAX_ARCS * min(1.0, moments.goal.seconds / FULL_SECONDS))
    leaves = min(MAX_LEAVES, arcs // max(1, len(moments.read) + moments.problem.tasks))
    count = itertools.count()
    open_ = [(root.value, next(count), root) for root in roots]
    heapq.heapify(open_)
    for _ in range(1, leaves):
        worst = open_[0][2]
        if worst.split < 0:
            break
        heapq.heappop(open_)
        gone, live = (make_branch(moments, worst.task, {**worst.fixed, worst.split: there}) for there in (0, 1))
        worst.below = (gone, live)
        for node in worst.below:
            heapq.heappush(open_, (node.value, next(count), node))
    return open_[0][2].ticks


def make_branch(moments: StepModel, task: int, fixed: dict[int, int] | None = None) -> BranchNode:
    """The best price under what is certain, and the largest buffer in which the choices around it differ."""
    fixed = fixed or {}
    network, dearest = StepNetwork(moments, task, fixed), moments.max_multiplier
    cheap, dear = network.line(1), network.line(dearest)
    best, price = max((cheap.at(1), 1), (dear.at(dearest), dearest)) if dear.bytes > 0 else (cheap.at(1), 1)
    if dear.bytes > 0 or cheap.bytes <= 0:
        return BranchNode(task, fixed, best, price, -1)
    cheap, dear, found = bracket_budget(network, cheap, dear)
    best, price = max((best, price), found)
    differ = (set(cheap.live) ^ set(dear.live)) - fixed.keys()
    return BranchNode(task, fixed, best, price, max(differ, key=lambda b: (moments.size[b], -b), default=-1))


def bracket_budget(network: StepNetwork, cheap: CutPoint, dear: CutPoint) -> tuple[CutPoint, CutPoint, tuple[int, int]]:
    """The best choices over the budget and within it at one price, and what they cost there, in parts, with the price.

    To begin with, one choice over the budget and one within.
    """
    found = (0, 1)
    for _ in range(MAX_CUTS_PER_LEAF):
        now = TICK_SCALE * (dear.ticks - cheap.ticks) // max(1, cheap.bytes - dear.bytes)
        now = min(network.moments.max_multiplier, max(1, now))
        line = network.line(now)
        found = max(found, (line.at(now), now))
        if line.at(now) >= min(cheap.at(now), dear.at(now)):
            break
        cheap, dear = (line, dear) if line.bytes > 0 else (cheap, line)
    return cheap, dear, found


def tree_proof(moments: StepModel, node: BranchNode) -> dict[str, Any]:
    """The tree as a proof: of a leaf its price and the flow of its cut."""
    if node.below is not None:
        zero, one = (tree_proof(moments, below) for below in node.below)
        return {"branch": ["L", 0, node.split], "zero": zero, "one": one}
    weights = StepNetwork(moments, node.task, node.fixed).weights(TICK_SCALE, node.price)
    return {"price": [node.price], "parts": TICK_SCALE, **weights}
