"""Branch and bound over several steps: the tree of one step, continued where what is best there does not fit elsewhere.

                 first step of the chain, by minimum cuts        several steps, by linear programs
    root ─┬─ buffer 3 not live ── 12 ticks: enough
          └─ buffer 3 live ────┬─ buffer 7 not live ── 10 ticks ─┬─ at step 2 buffer 4 not live ── 12 ticks: enough
                               └─ ...                            └─ at step 2 buffer 4 live ────── 13 ticks: enough

A leaf of the first tree that proves less than the plan found takes is branched on: its linear program has the
inequalities of all steps, and the largest buffer that is neither live nor dead in its optimum is fixed at that step.

Source: branch and bound with linear relaxations, Land and Doig, 1960; the rest is the project's own.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graph.cancellation import CancellationError, seconds_left
from planner.bounds.claims import Claim, cost_claim, problem_columns
from planner.bounds.multi_step_lp import step_windows
from planner.bounds.step_branch_and_bound import FULL_TREE_SECONDS, BranchNode, nodes_of, tree_proof
from planner.bounds.step_lp import StepLp, StepSolution, Variable
from planner.bounds.step_network import UNKNOWN, StepModel
from planner.verify import certificate

# Limits on the steps, on the linear programs, and on their rows in total.
MAX_STEPS, MAX_PROGRAMS, MAX_ROWS = 6, 400, 600_000
# Iterations of a search, where they are limited instead of its time, for each linear program.
ITERATIONS_PER_PROGRAM = 50
# Share of the time left for branching; the rest is for the proof.
GROW_PART = 0.6
# A value in 0..1 nearer to 0 or 1 than this is whole. Solvers err by so much of a bound.
WHOLE, ROUNDING = 1e-6, 1e-9
# Order in which fractional variables are branched on.
KINDS = ("L", "D", "A")


@dataclass(slots=True)
class _Leaf:
    """A node of the tree with its linear program, or that of one step alone if `solution` is None."""

    fixed: dict[Variable, int]
    ticks: float  # lower bound, before its proof is rounded
    single: BranchNode | None = None
    solution: StepSolution | None = None
    split: Variable | None = None
    below: tuple[_Leaf, _Leaf] | None = None  # children: `split` is 0, is 1


def bound(model: StepModel, root: BranchNode, tasks: Sequence[int], needed: float) -> Claim | None:
    """The claim of a tree over several steps that continues the tree of a single one, or None if nothing is proven.

    Of `tasks`, those are used as further steps whose first runs have an order among them in every sequence. Branching
    ends once `needed` ticks are proven. Shorter goals (in seconds or iterations) get smaller trees.
    """
    chain, once = comparable(model, [root.task, *tasks]), model.problem.single_run_ticks()
    if len(chain) < 2:
        return None
    tree = _Tree(model, chain, chain.index(root.task), root)
    tree.grow(needed - once)
    claim = cost_claim(model.goal, model.budget_bytes, 0, "several-moments", chain, tree.proof(root))
    value = certificate.proven_value(problem_columns(model.problem), claim)
    return {**claim, "value": value} if value > once else None


def comparable(model: StepModel, tasks: Sequence[int]) -> list[int]:
    """Those of the tasks whose first runs have an order in every sequence, in that order; at most MAX_STEPS."""
    chain: list[int] = []
    for task in tasks:
        known = model.known(task)
        if task not in chain and len(chain) < MAX_STEPS and all(known[other] != UNKNOWN for other in chain):
            chain.insert(sum(int(known[other] == 1) for other in chain), task)
    return chain


class _Tree:
    """The leaves below the tree of one step."""

    def __init__(self, model: StepModel, chain: list[int], at: int, root: BranchNode):
        self.model, self.chain, self.at = model, chain, at
        self.lp = StepLp(model, chain, step_windows(len(chain)))
        self.count = itertools.count()
        self.leaves: list[tuple[float, int, _Leaf]] = []
        self.of_single: dict[int, _Leaf] = {}
        for node in nodes_of(root):
            if node.below is None:
                fixed: dict[Variable, int] = {("L", at, b): state for b, state in node.fixed.items()}
                leaf = _Leaf(fixed, float(node.value), node)
                self.of_single[id(node)] = leaf
                self._push(leaf)

    def _push(self, leaf: _Leaf) -> None:
        heapq.heappush(self.leaves, (leaf.ticks, next(self.count), leaf))

    def grow(self, needed: float) -> None:
        """Branch on the weakest leaf until all prove so many ticks of recomputation, or the limits are reached."""
        goal, left, spent = self.model.goal, seconds_left() * (1 - GROW_PART), 0.0
        allowed = min(MAX_PROGRAMS, MAX_ROWS // max(1, len(self.lp.rows.least)))
        if goal.iterations is None:
            programs = int(allowed * min(1.0, goal.seconds / FULL_TREE_SECONDS))
        else:
            programs = min(allowed, goal.iterations // ITERATIONS_PER_PROGRAM)
        for _ in range(programs):
            leaf, before = self.leaves[0][2], seconds_left()
            if leaf.ticks >= needed * (1 - ROUNDING) or (before - spent <= left < math.inf):
                break
            try:
                if not self._improved(leaf):
                    break
            except CancellationError:
                break
            spent = before - seconds_left()  # by the last branch; the next one takes as long

    def _improved(self, leaf: _Leaf) -> bool:
        """Solve the linear program of the weakest leaf, or branch on it; False if that is not possible."""
        if leaf.solution is None:
            found = self.lp.solved(leaf.fixed)
            if found is None:
                return False
            heapq.heappop(self.leaves)
            leaf.solution, leaf.split = found, self._fractional(found)
            leaf.ticks = max(leaf.ticks, found.ticks)
            self._push(leaf)
            return True
        if leaf.split is None:
            return False
        sides = [_Leaf({**leaf.fixed, leaf.split: value}, leaf.ticks) for value in (0, 1)]
        for side in sides:
            if (found := self.lp.solved(side.fixed)) is None:
                return False
            side.solution, side.split, side.ticks = found, self._fractional(found), max(leaf.ticks, found.ticks)
        heapq.heappop(self.leaves)
        leaf.below = (sides[0], sides[1])
        for side in sides:
            self._push(side)
        return True

    def _fractional(self, found: StepSolution) -> Variable | None:
        """The variable to branch on: a buffer before a task, the largest first; None if all are whole."""
        size, cost = self.model.size, self.model.problem.cost
        rows = [name for name, value in found.values.items() if name[0] in KINDS and WHOLE < value < 1 - WHOLE]

        def rank(name: Variable) -> tuple[int, int, Variable]:
            weight = size[name[-1]] if name[0] == "L" else cost[name[-1]]
            return -KINDS.index(name[0]), int(weight), name[1:]

        return max(rows, key=rank, default=None)

    def proof(self, node: BranchNode) -> dict[str, Any]:
        """The proof of the whole tree from a node of that of one step."""
        if node.below is not None:
            zero, one = (self.proof(below) for below in node.below)
            return {"branch": ["L", self.at, node.split], "zero": zero, "one": one}
        return self._leaf_proof(self.of_single[id(node)])

    def _leaf_proof(self, leaf: _Leaf) -> dict[str, Any]:
        if leaf.below is not None:
            zero, one = (self._leaf_proof(below) for below in leaf.below)
            assert leaf.split is not None
            return {"branch": list(leaf.split), "zero": zero, "one": one}
        single = leaf.single
        if leaf.solution is not None and (single is None or leaf.solution.ticks > single.value):
            weights = self.lp.weights(leaf.solution)
            assert weights is not None
            return weights
        assert single is not None
        return _at_step(tree_proof(self.model, single), self.at, len(self.chain))


def _at_step(proof: dict[str, Any], at: int, steps: int) -> dict[str, Any]:
    """A proof at one step as one at step `at` of several."""
    return {
        **proof,
        "price": [proof["price"][0] if k == at else 0 for k in range(steps)],
        "windows": [{**window, "from": at, "to": steps} for window in proof["windows"]],
        "before": [[at, *row[1:]] for row in proof["before"]],
    }
