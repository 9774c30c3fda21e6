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

from planner.bounds.claims import Claim, of_cost
from planner.bounds.step_network import FULL_SECONDS, PARTS, Line, Moments, Network
from planner.problem import Problem
from planner.problem.plan import Goal

# Leaves of a tree; fewer where so many arcs are looked at before.
LEAVES, ARCS = 200, 150_000
# Networks solved for one leaf.
CUTS_A_LEAF = 24


@dataclass(slots=True)
class Node:
    """What is certain of buffers in one part of a tree, what its moment costs at least, and where it splits."""

    task: int  # whose moment it is
    fixed: dict[int, int]
    value: int  # parts of a tick
    price: int
    split: int  # buffer; -1: the best choice is known
    below: tuple[Node, Node] | None = None  # the buffer does not lie there, and does

    @property
    def ticks(self) -> int:
        return -(-self.value // PARTS)


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int) -> Claim | None:
    """What the moment of the task costs at least; None where the tree says no more than its root.

    A goal of fewer seconds has a smaller tree.
    """
    moments = Moments(problem, goal, budget_bytes)
    root = node_of(moments, task)
    ticks = least_of_grown(moments, [root])
    if root.below is None or ticks <= root.ticks:
        return None
    once = int(problem.cost[~problem.optional].sum())
    return of_cost(goal, budget_bytes, once + ticks, "branched-moment", [task], proof_of(moments, root))


def least_of_grown(moments: Moments, roots: list[Node]) -> int:
    """Ticks that the least leaf of some trees costs, once as many leaves have split as the goal's seconds allow."""
    arcs = int(ARCS * min(1.0, moments.goal.seconds / FULL_SECONDS))
    leaves = min(LEAVES, arcs // max(1, len(moments.read) + moments.problem.tasks))
    count = itertools.count()
    open_ = [(root.value, next(count), root) for root in roots]
    heapq.heapify(open_)
    for _ in range(1, leaves):
        worst = open_[0][2]
        if worst.split < 0:
            break
        heapq.heappop(open_)
        gone, live = (node_of(moments, worst.task, {**worst.fixed, worst.split: there}) for there in (0, 1))
        worst.below = (gone, live)
        for node in worst.below:
            heapq.heappush(open_, (node.value, next(count), node))
    return open_[0][2].ticks


def node_of(moments: Moments, task: int, fixed: dict[int, int] | None = None) -> Node:
    """The best price under what is certain, and the largest buffer in which the choices around it differ."""
    fixed = fixed or {}
    network, dearest = Network(moments, task, fixed), moments.dearest
    cheap, dear = network.line(1), network.line(dearest)
    best, price = max((cheap.at(1), 1), (dear.at(dearest), dearest)) if dear.bytes > 0 else (cheap.at(1), 1)
    if dear.bytes > 0 or cheap.bytes <= 0:
        return Node(task, fixed, best, price, -1)
    cheap, dear, found = around(network, cheap, dear)
    best, price = max((best, price), found)
    differ = (set(cheap.live) ^ set(dear.live)) - fixed.keys()
    return Node(task, fixed, best, price, max(differ, key=lambda b: (moments.size[b], -b), default=-1))


def around(network: Network, cheap: Line, dear: Line) -> tuple[Line, Line, tuple[int, int]]:
    """The best choices over the budget and within it at one price, and what they cost there, in parts, with the price.

    To begin with, one choice over the budget and one within.
    """
    found = (0, 1)
    for _ in range(CUTS_A_LEAF):
        now = PARTS * (dear.ticks - cheap.ticks) // max(1, cheap.bytes - dear.bytes)
        now = min(network.moments.dearest, max(1, now))
        line = network.line(now)
        found = max(found, (line.at(now), now))
        if line.at(now) >= min(cheap.at(now), dear.at(now)):
            break
        cheap, dear = (line, dear) if line.bytes > 0 else (cheap, line)
    return cheap, dear, found


def proof_of(moments: Moments, node: Node) -> dict[str, Any]:
    """The tree as a proof: of a leaf its price and the flow of its cut."""
    if node.below is not None:
        zero, one = (proof_of(moments, below) for below in node.below)
        return {"branch": ["L", 0, node.split], "zero": zero, "one": one}
    weights = Network(moments, node.task, node.fixed).weights(PARTS, node.price)
    return {"price": [node.price], "parts": PARTS, **weights}
