"""Methods that tighten the bound on the cost within a budget, while the best plan leaves a gap.

first of a set ─▶ full trees of single steps ─▶ overfull steps ─▶ best cuts ─▶ linear program, trees over several steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from graph.cancellation import seconds_left, unless_cancelled
from planner.bounds import (
    claims,
    first_of_set,
    multi_step_lp,
    multi_step_tree,
    step_branch_and_bound,
    step_conflicts,
    step_cut,
)
from planner.bounds.step_branch_and_bound import BranchNode, proven_ticks
from planner.bounds.step_network import StepModel
from planner.formulation.formulation import Formulation
from planner.formulation.lower_bound import LowerBound
from planner.formulation.proven_bound.cost_scope import CostScope
from planner.formulation.proven_bound.findings import Findings
from planner.problem.recompute import order_keeping_live
from planner.verify.certificate import CertificateRejected

Method = Callable[[], claims.Claim | None]
# Steps with the largest single-step bound: for which branch and bound runs, and from which several are chosen.
BRANCHED_STEPS, JOINT_STEPS = 2, 6
# Further steps at which the best choice of a step is over the budget.
OVERFULL_STEPS = 3
# With more tasks, the linear program alone of a tree over several steps has to prove more than a tree over others did.
SMALL_TASKS = 200


def tightening_bounds(
    formulation: Formulation, needed: Callable[[], float], findings: Findings | None = None
) -> Iterator[LowerBound]:
    """The bound after each method that may tighten it, while it proves less than `needed()` ticks.

    Costs within the budget only. Cancellation ends it.
    """
    tightening = unless_cancelled(None, lambda _: _Tightening(formulation, needed, findings or Findings()), None)
    if tightening is None:
        return
    for find in tightening.methods():
        tightening.bound = tightening.scope.improved(tightening.bound, find)
        yield tightening.bound
        if tightening.bound.cost >= tightening.cheapest():
            return


class _Tightening:
    """The bound of one formulation while methods tighten it, and what they find for each other.

    A method returns a claim, which need not be tighter; None if it does not apply or finds none.
    """

    def __init__(self, formulation: Formulation, needed: Callable[[], float], findings: Findings):
        self.needed, self.findings = needed, findings
        self.bound, self.scope = formulation.bound, CostScope.of(formulation)
        self.exact, self.arena = formulation.lowered.problem, formulation.in_arena_bytes()
        self.problem, self.goal, self.budget_bytes = self.scope.problem, self.scope.goal, self.scope.budget_bytes
        self.once = self.problem.single_run_ticks()
        self.model = StepModel(self.problem, self.goal, self.budget_bytes)
        self.roots: dict[int, BranchNode | None] = {}  # task -> tree of its step
        self.cuts: list[step_cut.StepCut] = []  # best first
        self.priced: list[int] = []  # steps with prices in the linear program over many steps
        self.refused: list[CertificateRejected] = []  # by the verifier, of the last tree over several steps
        self.has_overfull = False  # a tree over the steps that the best choice of the first one overfills proves ticks
        # Without a time limit, trees of one step do not depend on the plan.
        self.beyond = self._ticks_beyond if seconds_left() < math.inf else lambda: math.inf

    def methods(self) -> Iterator[Method]:
        """The methods in the order in which they are tried; later ones use the findings of earlier ones."""
        first_steps = bound_steps(self.bound)
        yield self.set_claim
        yield from (partial(self.tree_claim, task) for task in first_steps)
        yield self.overfull_claim
        yield self.cut_claim
        if not self.cuts:
            return
        tasks = [cut.task for cut in self.cuts]
        yield partial(self.tree_claim, tasks[0])
        yield partial(self.joint_claim, tasks)
        yield from (partial(self.further_claim, task) for task in dict.fromkeys((*first_steps, tasks[0])))
        yield from (partial(self.tree_claim, task) for task in tasks[1:BRANCHED_STEPS])
        yield partial(self.linear_claim, tasks[0])
        yield partial(self.joint_claim, tasks)

    def cheapest(self) -> float:
        """Ticks of the cheapest plan known, of the search or of a method."""
        return min(self.needed(), self.findings.cost)

    def _ticks_beyond(self) -> float:
        """Ticks of recomputation above which a bound proves `cheapest()`: every cost is a multiple of the quantum."""
        return self.cheapest() - self.once - self.scope.quantum

    def set_claim(self) -> claims.Claim | None:
        """The bound over a set of tasks, one of which runs first."""
        return first_of_set.bound(self.problem, self.goal, self.budget_bytes, self.bound.cost)

    def tree_claim(self, task: int) -> claims.Claim | None:
        """The full tree of the step at which a task runs first, unless it is made already."""
        if task in self.roots:
            return None
        self.roots[task] = root = step_branch_and_bound.make_tree(self.model, task, beyond=self.beyond)
        return None if root is None else step_branch_and_bound.tree_claim(self.model, root)

    def further_claim(self, task: int) -> claims.Claim | None:
        """A tree of one step, grown further where that may prove more than is known."""
        if (root := self.roots.get(task)) is None or self.beyond() == math.inf:
            return None
        known = self.bound.cost - self.once
        if step_branch_and_bound.cheapest_choice(root) <= known:
            return None
        if not step_branch_and_bound.grow_further(self.model, root) or proven_ticks(root) <= known:
            return None
        return step_branch_and_bound.tree_claim(self.model, root)

    def cut_claim(self) -> claims.Claim | None:
        """The best cut of a single step; the others serve the methods that follow."""
        self.cuts = step_cut.best_cuts(self.problem, self.goal, self.budget_bytes, JOINT_STEPS)
        return self.cuts[0].claim if self.cuts else None

    def linear_claim(self, task: int) -> claims.Claim | None:
        """The linear program over many steps around that of a task."""
        claim = multi_step_lp.bound(self.problem, self.goal, self.budget_bytes, task)
        self.priced = [] if claim is None else priced_steps(claim)
        return claim

    def overfull_claim(self) -> claims.Claim | None:
        """A tree over the steps that the best choice of the first tree overfills."""
        root = next((root for root in self.roots.values() if root is not None), None)
        if root is None or self.needed() == math.inf:
            return None
        steps = step_conflicts.overfull_steps(self.model, root, OVERFULL_STEPS)
        claim = self._joint_tree(root, steps, proven_ticks(root))
        self.has_overfull = claim is not None
        return claim

    def joint_claim(self, tasks: Sequence[int]) -> claims.Claim | None:
        """A tree over several steps: those of the bound, those with prices in the linear program, and those of cuts."""
        root = self.roots.get(tasks[0])
        if root is None or self.needed() == math.inf:
            return None
        proves_more = (self.has_overfull or self.bound.kind == "first-of-some") and self.problem.tasks > SMALL_TASKS
        least = self.bound.cost - self.once if proves_more else None
        return self._joint_tree(root, [*bound_steps(self.bound), *self.priced, *tasks], least)

    def _joint_tree(self, root: BranchNode, steps: list[int], least: float | None) -> claims.Claim | None:
        """A tree over several steps. Its claim is noted as accepted, unless the verifier refuses it."""
        self.refused.clear()
        claim = multi_step_tree.bound(
            self.model, root, steps, self.cheapest, self.scope.quantum, least, self._prove, self._offer
        )
        if claim is not None and not self.refused:
            self.findings.accepted.append(self.scope.of_arena(claim))
        return claim

    def _prove(self, claim: claims.Claim) -> int:
        """Ticks that the verifier accepts; if it refuses the claim, those of the proof alone."""
        try:
            return claims.proven_value(self.exact, self.scope.of_arena(claim))
        except CertificateRejected as reason:
            self.refused.append(reason)  # `certified` drops the claim, with a warning
            return claims.proven_value(self.problem, claim)

    def _offer(self, steps: list[tuple[int, list[int]]]) -> None:
        """Offer the order that keeps, at the first run of each of the tasks, the buffers chosen for that step."""
        order = self.model.order
        for task, live in steps:
            order = order_keeping_live(self.problem, order, task, live)
        self.findings.offer(self.arena, order, self.cheapest())


def bound_steps(bound: LowerBound) -> list[int]:
    """Tasks at whose first runs the proof of a bound has prices; none of a bound over a set or several steps' tree."""
    return priced_steps(bound.claims[1])


def priced_steps(claim: claims.Claim) -> list[int]:
    """Tasks at whose first runs the proof of a claim has prices, as of `bound_steps`."""
    if claim["kind"] in ("moment-cut", "branched-moment"):
        return list(claim["moments"])
    if claim["kind"] != "several-moments" or "price" not in claim["proof"]:
        return []
    return [task for task, price in zip(claim["moments"], claim["proof"]["price"], strict=True) if price]
