"""Branch and bound for one step: each branch fixes a buffer to be live, or not live, at the step.

The multiplier of `step_cut.py` relaxes a knapsack; the two choices that are best at that multiplier, one over and one
within the budget, differ in some buffers. The tree branches on the largest of them, weakest leaf first. Each leaf
is a cut with its own multiplier, and the minimum over the leaves is the bound.

Multipliers are fractions, as exact as the capacities of a flow allow. The bound of a leaf whose cheapest choice is
within the budget is the cost of that choice.

Bytes are counted in grains: in their common divisor, which loses nothing, or in a larger grain, to which sizes and what
is left of the budget are rounded down. Where most sizes are multiples of a large one, a budget in between is worth no
more than the multiple below it, and the tree is far smaller. A choice that fits in grains alone is branched on.

Source: branch and bound with Lagrangian bounds, Geoffrion, "Lagrangean relaxation for integer programming", 1974;
rounding of an inequality, Chvátal, "Edmonds polytopes and a hierarchy of combinatorial problems", 1973.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from graph.cancellation import CancellationError, seconds_left
from planner.bounds.claims import Claim, cost_claim
from planner.bounds.step_network import CutPoint, Multiplier, StepModel, StepNetwork
from planner.problem import Problem
from planner.problem.plan import Goal

# Limits on a tree: its leaves, and the arcs of all their networks.
MAX_LEAVES, MAX_ARCS = 200, 150_000
# Leaves of a tree that cannot prove what it has to.
FEW_LEAVES = 70
# Goals with at least this many seconds get full trees.
FULL_TREE_SECONDS = 3.0
# Shares of the time left that are kept after a tree: for its proof, and for the order made of its best choice.
PROOF_PART, ORDER_PART = 0.5, 0.1
# Networks solved for one leaf.
MAX_CUTS_PER_LEAF = 24
# Factors from the multiplier of a node to those that are tried first for choices over and within in its branches.
NEAR = (4, 64)
# A grain is tried for each so many leaves allowed; it rounds off at most this share of all bytes. Sizes looked at.
LEAVES_PER_GRAIN, MAX_LOST, MAX_SIZES = 20, 0.03, 256


@dataclass(slots=True)
class BranchNode:
    """A node of the tree: fixed buffers, lower bound of the step's cost, and the buffer to branch on."""

    task: int  # at whose first run the step is
    fixed: dict[int, int]  # buffer -> 1: live, 0: not live
    value: Fraction  # lower bound in ticks
    price: Multiplier  # of the bound, for a grain
    grain: int  # bytes
    split: int  # buffer to branch on; -1: the best choice is known
    within: CutPoint | None = None  # the cheapest choice within the budget that was met
    below: tuple[BranchNode, BranchNode] | None = None  # children: the buffer is not live, is live

    @property
    def ticks(self) -> int:
        """The lower bound in whole ticks, rounded up."""
        return -(-self.value.numerator // self.value.denominator)


def bound(problem: Problem, goal: Goal, budget_bytes: int, task: int, effort: float = 1.0) -> Claim | None:
    """The claim for the step of `task`, or None if nothing is proven or the problem is too large for a tree.

    Shorter goals (in seconds) get smaller trees, and `effort` is a share of their leaves.
    """
    model = StepModel(problem, goal, budget_bytes)
    root = make_tree(model, task, effort)
    return None if root is None else tree_claim(model, root)


def make_tree(
    model: StepModel, task: int, effort: float = 1.0, beyond: Callable[[], float] = lambda: math.inf
) -> BranchNode | None:
    """The root of the tree for the step of `task`; None if the problem is too large for one.

    The tree ends early once it proves more than `beyond()` ticks, and with FEW_LEAVES if a choice that it met costs no
    more, since it will not prove more then. `grow_further` goes on with it.
    """
    if (leaves := leaf_limit(model, effort)) < 2:
        return None
    root = make_branch(model, task)
    if root.split >= 0:
        grains = likely_grains(model, leaves // LEAVES_PER_GRAIN)
        root = max([root, *(make_branch(model, task, grain=g) for g in grains)], key=lambda node: node.value)
    grow_trees(model, [root], effort, beyond=beyond)
    return root


def grow_further(model: StepModel, root: BranchNode) -> bool:
    """Branch on the leaves of a tree that ended early, as far as the limits allow; False if they allow none."""
    leaves = [node for node in nodes_of(root) if node.below is None]
    grow_trees(model, leaves, grown=len(leaves))
    return any(leaf.below is not None for leaf in leaves)


def cheapest_choice(root: BranchNode) -> float:
    """Ticks of the cheapest choice within the budget that a tree met, more than which it does not prove."""
    return min(map(_choice_ticks, nodes_of(root)))


def likely_grains(model: StepModel, count: int) -> list[int]:
    """Up to `count` sizes of buffers that round off fewer bytes than all larger ones, the largest first."""
    sizes, buffers = np.unique(model.size[model.size > model.grain], return_counts=True)
    grains = sizes[-MAX_SIZES:]
    lost = (sizes % grains[:, None]) @ buffers
    fewer = lost < np.minimum.accumulate(np.append(np.inf, lost[::-1]))[-2::-1]
    return list(map(int, grains[fewer & (lost <= MAX_LOST * (sizes @ buffers))][::-1][:count]))


def tree_claim(model: StepModel, root: BranchNode) -> Claim | None:
    """The claim that a tree proves, or None if that is nothing."""
    if (ticks := proven_ticks(root)) <= 0:
        return None
    kind, once = "moment-cut" if root.below is None else "branched-moment", model.problem.single_run_ticks()
    return cost_claim(model.goal, model.budget_bytes, once + ticks, kind, [root.task], tree_proof(model, root))


def proven_ticks(root: BranchNode) -> int:
    """Ticks of recomputation that a tree proves."""
    return min(node.ticks for node in nodes_of(root) if node.below is None)


def best_choice(model: StepModel, task: int) -> CutPoint | None:
    """The cheapest choice within the budget at the step of `task` that a tree meets; None: none.

    It is the optimum of the step unless the limit on leaves or the time ends the tree. Its `live` buffers have those
    that the branches fix.
    """
    root = make_branch(model, task)
    with suppress(CancellationError):
        grow_trees(model, [root], kept=ORDER_PART)
    met = [node.within for node in nodes_of(root) if node.within is not None]
    return min(met, key=lambda choice: choice.ticks, default=None)


def nodes_of(root: BranchNode) -> Iterator[BranchNode]:
    """All nodes of a tree."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.below or ())
        yield node


def leaf_limit(model: StepModel, effort: float = 1.0) -> int:
    """Leaves of all trees together that the goal's seconds allow."""
    arcs = int(MAX_ARCS * effort * min(1.0, model.goal.seconds / FULL_TREE_SECONDS))
    return min(MAX_LEAVES, arcs // max(1, len(model.read) + model.problem.tasks))


def grow_trees(
    model: StepModel,
    roots: list[BranchNode],
    effort: float = 1.0,
    kept: float = PROOF_PART,
    beyond: Callable[[], float] = lambda: math.inf,
    grown: int = 1,
) -> int:
    """Ticks of the weakest leaf over all trees, once as many leaves are split as allowed; `grown` count as there.

    A share `kept` of the time left is not used. `beyond` ends it early, as it does `make_tree`.
    """
    count = itertools.count()
    leaves_by_bound = [(root.value, next(count), root) for root in roots]
    heapq.heapify(leaves_by_bound)
    until, cheapest = kept * seconds_left(), min(map(_choice_ticks, roots), default=math.inf)
    for _ in range(grown, leaf_limit(model, effort)):
        worst, enough = leaves_by_bound[0][2], beyond()
        if worst.split < 0 or seconds_left() < until or worst.value > enough:
            break
        if len(leaves_by_bound) >= FEW_LEAVES and cheapest <= enough < math.inf:
            break
        heapq.heappop(leaves_by_bound)
        sides = ({**worst.fixed, worst.split: state} for state in (0, 1))
        dead, live = (make_branch(model, worst.task, fixed, worst.grain, worst.price) for fixed in sides)
        worst.below = (dead, live)
        for node in worst.below:
            heapq.heappush(leaves_by_bound, (node.value, next(count), node))
            cheapest = min(cheapest, _choice_ticks(node))
    return leaves_by_bound[0][2].ticks


def _choice_ticks(node: BranchNode) -> float:
    return math.inf if node.within is None else node.within.ticks


def make_branch(
    model: StepModel, task: int, fixed: dict[int, int] | None = None, grain: int = 0, near: Multiplier | None = None
) -> BranchNode:
    """The node with its best multiplier under `fixed`, and the largest buffer in which the choices around it differ.

    `grain` in bytes, 0: the common divisor of all sizes; `near`: a multiplier to start from.
    """
    fixed, grain = fixed or {}, grain or model.grain
    network = StepNetwork(model, task, fixed, grain)
    over, within, best, price = _around(network, near)
    if within.bytes > 0 or over.bytes <= 0:
        node = BranchNode(task, fixed, best, price, grain, -1, _with_fixed(over if over.bytes <= 0 else None, fixed))
        return _exact(model, node)
    for _ in range(MAX_CUTS_PER_LEAF):
        fair = network.multiplier_near(Fraction(within.ticks - over.ticks, over.bytes - within.bytes))
        choice = network.choice_at(fair)
        best, price = max((best, price), (choice.value(fair), fair))
        if choice.value(fair) >= min(over.value(fair), within.value(fair)):
            break
        over, within = (choice, within) if choice.bytes > 0 else (over, choice)
    differ = (set(over.live) ^ set(within.live)) - fixed.keys() if best < within.ticks else set()
    split = max(differ, key=lambda b: (model.size[b], -b), default=-1)
    return _exact(model, BranchNode(task, fixed, best, price, grain, split, _with_fixed(within, fixed)))


def _exact(model: StepModel, node: BranchNode) -> BranchNode:
    """The node; if it has nothing to branch on in its grains, with the choice in exact bytes and what to branch on."""
    if node.split >= 0 or node.grain == model.grain:
        return node
    exact = make_branch(model, node.task, node.fixed)
    if exact.value > node.value:
        return exact
    closed = exact.within is not None and exact.within.ticks <= node.value
    return replace(node, split=-1 if closed else exact.split, within=exact.within)


def _around(network: StepNetwork, near: Multiplier | None) -> tuple[CutPoint, CutPoint, Fraction, Multiplier]:
    """A choice over and one within the budget, if there are both, and the best bound met with its multiplier."""
    free, highest = Multiplier(1, 0), network.highest_multiplier()
    bounds: list[tuple[Fraction, Multiplier]] = []

    def at(multiplier: Multiplier) -> CutPoint:
        choice = network.choice_at(multiplier)
        bounds.append((choice.value(multiplier), multiplier))
        return choice

    if near is None:
        over, within = at(free), at(highest)
    else:
        over = within = at(near)
        value = Fraction(near.price, near.parts)
        for lower in itertools.chain((network.multiplier_near(value / factor) for factor in NEAR), [free]):
            if over.bytes > 0:
                break
            within, over = over, at(lower)
        for higher in itertools.chain((network.multiplier_near(value * factor) for factor in NEAR), [highest]):
            if within.bytes <= 0:
                break
            over, within = within, at(min(higher, highest, key=lambda each: Fraction(each.price, each.parts)))
    return over, within, *max(bounds)


def _with_fixed(choice: CutPoint | None, fixed: dict[int, int]) -> CutPoint | None:
    """The choice with the buffers that are fixed to be live among its own."""
    live = {b for b, state in fixed.items() if state}
    return choice and replace(choice, live=tuple(sorted(live.union(choice.live))))


def tree_proof(model: StepModel, node: BranchNode) -> dict[str, Any]:
    """The tree as a proof: for each leaf its multiplier and the flow of its cut."""
    if node.below is not None:
        zero, one = (tree_proof(model, below) for below in node.below)
        return {"branch": ["L", 0, node.split], "zero": zero, "one": one}
    parts, price = node.price
    weights = StepNetwork(model, node.task, node.fixed, node.grain).weights(parts, price)
    return {"price": [price], "parts": parts, "grain": node.grain, **weights}
