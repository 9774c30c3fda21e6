"""Branch and bound over several steps whose inequalities are relaxed together, by linear programs.

                 first step of the chain, by minimum cuts        several steps, by linear programs
    root ─┬─ buffer 3 not live ── 12 ticks: enough
          └─ buffer 3 live ────┬─ buffer 7 not live ── 10 ticks ─┬─ at step 2 buffer 4 not live ── 12 ticks: enough
                               └─ ...                            └─ at step 2 buffer 4 live ────── 13 ticks: enough

If the linear program of all steps has a price at several of them, the tree begins at its root and uses the steps from
the first such step to the last. Else it continues the tree of the one step, with the steps at which the best choice of
that step costs more: a leaf that proves less than the plan found takes is branched on. The branch fixes a buffer that
is neither live nor dead at a step in the optimum of the linear program: the one whose two sides are expected to cost
most, by what earlier branches on it have cost (`branch_costs.py`).

Source: branch and bound with linear relaxations, Land and Doig, 1960; the rest is the project's own.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graph.cancellation import CancellationError, seconds_left
from planner.bounds.branch_costs import BranchCosts
from planner.bounds.claims import Claim, cost_claim, problem_columns
from planner.bounds.multi_step_lp import step_windows
from planner.bounds.step_branch_and_bound import FULL_TREE_SECONDS, BranchNode, nodes_of, tree_proof
from planner.bounds.step_conflicts import conflicting_steps
from planner.bounds.step_lp import StepLp, StepSolution, Variable
from planner.bounds.step_network import UNKNOWN, StepModel
from planner.verify import certificate

# Limits on the steps, on the linear programs, and on their rows in total; the clock allows MORE_BY_CLOCK times as many.
MAX_STEPS, MAX_PROGRAMS, MAX_ROWS, MORE_BY_CLOCK = 6, 400, 600_000, 10
# Further steps with which the best choice of the one step conflicts.
MAX_CONFLICTS = 2
# Steps up to which there are windows between all of them.
MAX_JOINED = 4
# Iterations of a search, where they are limited instead of its time, for each linear program.
ITERATIONS_PER_PROGRAM = 50
# Share of the time left for branching; the rest is for the proof.
GROW_PART = 0.7
# Solvers err by so much of a bound; a bound has to exceed a multiple of the quantum by so much of the quantum.
ROUNDING, OVER_QUANTUM = 1e-9, 1e-3
# Multipliers of a step at most this are 0.
PRICED = 1e-9


@dataclass(slots=True)
class _Leaf:
    """A node of the tree with its linear program, or that of one step alone if `solution` is None."""

    fixed: dict[Variable, int]
    ticks: float  # lower bound, before its proof is rounded
    single: BranchNode | None = None
    program: StepLp | None = None  # of the solution
    solution: StepSolution | None = None
    split: Variable | None = None
    below: tuple[_Leaf, _Leaf] | None = None  # children: `split` is 0, is 1


def bound(
    model: StepModel,
    root: BranchNode,
    tasks: Sequence[int],
    needed: Callable[[], float],
    quantum: int = 1,
    least: float | None = None,
    prove: Callable[[Claim], int] | None = None,
    choose: Callable[[list[tuple[int, list[int]]]], None] = lambda live: None,
) -> Claim | None:
    """The claim of a tree over several steps, or None if nothing is proven. `root` is the tree of one step.

    Of `tasks`, those are used as further steps whose first runs have an order among them in every sequence. Branching
    ends once `needed()` ticks are proven, if every cost is a multiple of `quantum`. Shorter goals (in seconds or
    iterations) get smaller trees. `least`: no tree is grown unless the linear program of all steps alone proves more
    than so many ticks of recomputation. `prove`: the value of a claim, by default that of the verifier.
    `choose` gets the steps and their live buffers in the optima in which these are whole and that cost less than
    `needed()`.
    """

    def met(chain: list[int], found: StepSolution) -> None:
        if found.ticks < needed() - once and not any(name[0] == "L" for name in found.between):
            live = [name[1:] for name in found.ones if name[0] == "L"]
            choose([(task, [b for at, b in live if at == k]) for k, task in enumerate(chain)])

    chain, once = comparable(model, [root.task, *tasks]), model.problem.single_run_ticks()
    tree = _Tree(model, chain, root, least, met)
    if not tree.leaves:
        return None
    tree.grow(lambda: enough(needed() - once, quantum))
    claim = cost_claim(model.goal, model.budget_bytes, 0, "several-moments", tree.chain, tree.proof())
    value = prove(claim) if prove else certificate.proven_value(problem_columns(model.problem), claim)
    return {**claim, "value": value} if value > once else None


def enough(ticks: float, quantum: int) -> float:
    """Ticks that a linear program has to prove, so that no multiple of `quantum` below `ticks` is possible.

    Where rounding exceeds the quantum, as many as it leaves of `ticks`.
    """
    return min(ticks * (1 - ROUNDING), ticks - quantum + max(quantum * OVER_QUANTUM, ticks * ROUNDING))


def comparable(model: StepModel, tasks: Sequence[int]) -> list[int]:
    """Those of the tasks whose first runs have an order in every sequence, in that order; at most MAX_STEPS."""
    chain: list[int] = []
    for task in tasks:
        known = model.known(task)
        if task not in chain and len(chain) < MAX_STEPS and all(known[other] != UNKNOWN for other in chain):
            chain.insert(sum(int(known[other] == 1) for other in chain), task)
    return chain


def windows_of(steps: int) -> list[tuple[int, int]]:
    """Windows from each step to each later one and to the end; of many, those to the next step and to the end only.

    The latter prove less: what is needed two steps later may be live by a fraction at the step between. They are also
    used without a time limit, where the rows of all linear programs are limited.
    """
    if steps > MAX_JOINED or seconds_left() == math.inf:
        return step_windows(steps)
    return list(itertools.combinations(range(steps + 1), 2))


class _Tree:
    """The tree below the root of the linear programs, or below the leaves of the tree of one step."""

    def __init__(
        self,
        model: StepModel,
        chain: list[int],
        root: BranchNode,
        least: float | None,
        met: Callable[[list[int], StepSolution], None],
    ):
        """No leaves: there are fewer than two steps, or their linear program does not prove more than `least` ticks.

        `met` gets the steps and each optimum.
        """
        self.met = met
        self.model, self.chain, self.root = model, chain, root
        self.grains = [root.grain]  # of the bytes in linear programs
        self.count = itertools.count()
        self.leaves: list[tuple[float, int, _Leaf]] = []
        self.costs = BranchCosts(model)
        self.of_single: dict[int, _Leaf] = {}
        self.solved = 0  # linear programs
        self.joint_root: _Leaf | None = None
        if len(chain) > 1:
            self.lp = self._program(chain)
            self.joint_root = self._joint_root()
        if least is not None and (self.joint_root is None or self.joint_root.ticks <= least):
            return
        if self.joint_root is not None:
            self._push(self.joint_root)
            return
        if conflicts := conflicting_steps(model, root, MAX_CONFLICTS):
            self.chain = comparable(model, [root.task, *conflicts])
            self.lp = self._program(self.chain)
        if len(self.chain) > 1:
            self._continue_single()

    def _program(self, chain: list[int]) -> StepLp:
        return StepLp(self.model, chain, windows_of(len(chain)), branches=True, grains=self.grains)

    def _made_exact(self) -> bool:
        """Add rows in exact bytes to later programs; False if they have them."""
        if self.model.grain in self.grains:
            return False
        self.grains = [self.model.grain, *self.grains]
        self.lp = self._program(self.chain)
        return True

    def _joint_root(self) -> _Leaf | None:
        """The root, with the steps between the first with a price and the last; None if fewer than two have one."""
        found = self._solved({})
        steps = zip(*self.lp.price, strict=True)  # rows of each
        priced = [] if found is None else [k for k, rows in enumerate(steps) if max(found.dual[[*rows]]) > PRICED]
        if len(priced) < 2:
            return None
        if (between := self.chain[priced[0] : priced[-1] + 1]) != self.chain:
            self.chain, self.lp = between, self._program(between)
            if (found := self._solved({})) is None:
                return None
        assert found is not None
        return _Leaf({}, found.ticks, None, self.lp, found)

    def _solved(self, fixed: dict[Variable, int]) -> StepSolution | None:
        """The optimum with the `fixed` variables; None if it is not reached or the limit on linear programs is."""
        if self.solved >= self._allowed():
            return None
        self.solved += 1
        if (found := self.lp.solved(fixed)) is not None:
            self.met(self.chain, found)
        return found

    def _continue_single(self) -> None:
        """Begin with the leaves of the tree of one step."""
        at = self.chain.index(self.root.task)
        for node in nodes_of(self.root):
            if node.below is None:
                fixed: dict[Variable, int] = {("L", at, b): state for b, state in node.fixed.items()}
                leaf = _Leaf(fixed, float(node.value), node)
                self.of_single[id(node)] = leaf
                self._push(leaf)

    def _push(self, leaf: _Leaf) -> None:
        heapq.heappush(self.leaves, (leaf.ticks, next(self.count), leaf))

    def _allowed(self) -> int:
        """Linear programs that the limits allow."""
        goal, more = self.model.goal, MORE_BY_CLOCK if seconds_left() < math.inf else 1
        allowed = more * min(MAX_PROGRAMS, MAX_ROWS // max(1, len(self.lp.rows.least)))
        if goal.iterations is None:
            return int(allowed * min(1.0, goal.seconds / FULL_TREE_SECONDS))
        return min(allowed, goal.iterations // ITERATIONS_PER_PROGRAM)

    def grow(self, needed: Callable[[], float]) -> None:
        """Branch on the weakest leaf until all prove so many ticks of recomputation, or the limits are reached."""
        left, spent = seconds_left() * (1 - GROW_PART), 0.0
        while True:
            leaf, before = self.leaves[0][2], seconds_left()
            if leaf.ticks >= needed() or (before - spent <= left < math.inf):
                break
            try:
                if not self._improved(leaf):
                    break
            except CancellationError:
                break
            spent = before - seconds_left()  # by the last branch; the next one takes as long

    def _improved(self, leaf: _Leaf) -> bool:
        """Solve the linear program of the weakest leaf, or branch on it; False if that is not possible."""
        if leaf.solution is not None:
            leaf.split = self.costs.best(leaf.solution.between)
        is_whole = leaf.solution is not None and leaf.split is None
        if leaf.solution is None or (is_whole and (leaf.program is not self.lp or self._made_exact())):
            found = self._solved(leaf.fixed)
            if found is None:
                return False
            heapq.heappop(self.leaves)
            leaf.program, leaf.solution = self.lp, found
            leaf.ticks = max(leaf.ticks, found.ticks)
            self._push(leaf)
            return True
        if leaf.split is None:
            return False
        sides = [_Leaf({**leaf.fixed, leaf.split: value}, leaf.ticks) for value in (0, 1)]
        for value, side in enumerate(sides):
            if (found := self._solved(side.fixed)) is None:
                return False
            side.ticks = max(leaf.ticks, found.ticks)
            side.program, side.solution = self.lp, found
            self.costs.learn(leaf.split, leaf.solution.between[leaf.split], value, found.ticks - leaf.solution.ticks)
        heapq.heappop(self.leaves)
        leaf.below = (sides[0], sides[1])
        for side in sides:
            self._push(side)
        return True

    def proof(self) -> dict[str, Any]:
        """The proof of the whole tree."""
        if self.joint_root is not None:
            return self._leaf_proof(self.joint_root)
        return self._single_proof(self.root)

    def _single_proof(self, node: BranchNode) -> dict[str, Any]:
        """The proof from a node of the tree of one step."""
        at = self.chain.index(self.root.task)
        if node.below is not None:
            zero, one = (self._single_proof(below) for below in node.below)
            return {"branch": ["L", at, node.split], "zero": zero, "one": one}
        return self._leaf_proof(self.of_single[id(node)])

    def _leaf_proof(self, leaf: _Leaf) -> dict[str, Any]:
        if leaf.below is not None:
            zero, one = (self._leaf_proof(below) for below in leaf.below)
            assert leaf.split is not None
            return {"branch": list(leaf.split), "zero": zero, "one": one}
        single = leaf.single
        if leaf.solution is not None and (single is None or leaf.solution.ticks > single.value):
            assert leaf.program is not None
            weights = leaf.program.weights(leaf.solution)
            assert weights is not None
            return weights
        assert single is not None
        return _at_step(tree_proof(self.model, single), self.chain.index(self.root.task), len(self.chain))


def _at_step(proof: dict[str, Any], at: int, steps: int) -> dict[str, Any]:
    """A proof at one step as one at step `at` of several."""
    return {
        **proof,
        "price": [proof["price"][0] if k == at else 0 for k in range(steps)],
        "windows": [{**window, "from": at, "to": steps} for window in proof["windows"]],
        "before": [[at, *row[1:]] for row in proof["before"]],
    }
