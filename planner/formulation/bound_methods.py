"""Methods that tighten the bound on the cost within a budget, while the best plan leaves a gap.

first of a set ─▶ full trees of single steps ─▶ overfull steps ─▶ best cuts ─▶ linear program, trees over several steps
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from graph.cancellation import seconds_left
from planner.bounds import (
    claims,
    first_of_set,
    multi_step_lp,
    multi_step_tree,
    step_branch_and_bound,
    step_conflicts,
    step_cut,
)
from planner.bounds.step_branch_and_bound import proven_ticks
from planner.bounds.step_network import StepModel
from planner.formulation.bound_findings import Findings
from planner.formulation.cost_scope import CostScope
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import LowerBound
from planner.problem import Problem
from planner.problem.recompute import order_keeping_live
from planner.verify.certificate import CertificateRejected

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
    findings = findings or Findings()
    scope, bound = CostScope.of(formulation), formulation.bound
    problem, goal, budget = scope.problem, scope.goal, scope.budget_bytes
    model = StepModel(problem, goal, budget)
    roots: dict[int, step_branch_and_bound.BranchNode | None] = {}  # task -> tree of its step
    cuts: list[step_cut.StepCut] = []
    priced: list[int] = []  # steps with prices in the linear program over many steps
    refused: list[CertificateRejected] = []  # by the verifier, of the last tree over several steps
    overfull: list[claims.Claim] = []  # of the tree over the steps that the best choice of the first one overfills

    def cheapest() -> float:
        return min(needed(), findings.cost)

    # Without a time limit, trees of one step do not depend on the plan.
    beyond = _beyond(problem, scope.quantum, cheapest) if seconds_left() < math.inf else lambda: math.inf

    def tree_claim(task: int) -> claims.Claim | None:
        if task in roots:
            return None
        roots[task] = root = step_branch_and_bound.make_tree(model, task, beyond=beyond)
        return None if root is None else step_branch_and_bound.tree_claim(model, root)

    def further_claim(task: int) -> claims.Claim | None:
        if (root := roots.get(task)) is None or beyond() == math.inf:
            return None
        known = bound.cost - problem.single_run_ticks()
        if step_branch_and_bound.cheapest_choice(root) <= known or not step_branch_and_bound.grow_further(model, root):
            return None
        return step_branch_and_bound.tree_claim(model, root) if proven_ticks(root) > known else None

    def cut_claim() -> claims.Claim | None:
        cuts.extend(step_cut.best_cuts(problem, goal, budget, JOINT_STEPS))
        return cuts[0].claim if cuts else None

    def joint_tree(
        root: step_branch_and_bound.BranchNode, steps: list[int], least: float | None = None
    ) -> claims.Claim | None:
        refused.clear()
        claim = multi_step_tree.bound(model, root, steps, cheapest, scope.quantum, least, prove, choose)
        if claim is not None and not refused:
            findings.accepted.append(scope.of_arena(claim))
        return claim

    arena = formulation.in_arena_bytes()

    def choose(steps: list[tuple[int, list[int]]]) -> None:
        order = model.order
        for task, live in steps:
            order = order_keeping_live(problem, order, task, live)
        findings.offer(arena, order, cheapest())

    def prove(claim: claims.Claim) -> int:
        try:
            return claims.proven_value(formulation.lowered.problem, scope.of_arena(claim))
        except CertificateRejected as reason:
            refused.append(reason)  # `certified` drops the claim, with a warning
            return claims.proven_value(problem, claim)

    def overfull_claim() -> claims.Claim | None:
        root = next((root for root in roots.values() if root is not None), None)
        if root is None or needed() == math.inf:
            return None
        steps, least = step_conflicts.overfull_steps(model, root, OVERFULL_STEPS), proven_ticks(root)
        claim = joint_tree(root, steps, least)
        overfull.extend([] if claim is None else [claim])
        return claim

    def set_claim() -> claims.Claim | None:
        return first_of_set.bound(problem, goal, budget, bound.cost)

    first_steps = bound_steps(bound)
    methods: list[Callable[[], claims.Claim | None]] = [partial(tree_claim, task) for task in first_steps]
    for find in (set_claim, *methods, overfull_claim, cut_claim):
        bound = scope.improved(bound, find)
        yield bound
        if bound.cost >= cheapest():
            return
    if not cuts:
        return
    tasks = [cut.task for cut in cuts]

    def joint_claim() -> claims.Claim | None:
        root = roots.get(tasks[0])
        if root is None or needed() == math.inf:
            return None
        proves_more = (overfull or bound.kind == "first-of-some") and problem.tasks > SMALL_TASKS
        least = bound.cost - problem.single_run_ticks() if proves_more else None
        return joint_tree(root, [*bound_steps(bound), *priced, *tasks], least)

    def linear_claim() -> claims.Claim | None:
        claim = multi_step_lp.bound(problem, goal, budget, tasks[0])
        priced.extend([] if claim is None else priced_steps(claim))
        return claim

    methods = [
        partial(tree_claim, tasks[0]),
        joint_claim,
        *(partial(further_claim, task) for task in dict.fromkeys((*first_steps, tasks[0]))),
        *(partial(tree_claim, task) for task in tasks[1:BRANCHED_STEPS]),
        linear_claim,
        joint_claim,
    ]
    for find in methods:
        if bound.cost >= cheapest():
            return
        bound = scope.improved(bound, find)
        yield bound


def _beyond(problem: Problem, quantum: int, needed: Callable[[], float]) -> Callable[[], float]:
    """Ticks of recomputation above which a bound proves `needed()` ticks: every cost is a multiple of `quantum`."""
    once = problem.single_run_ticks()
    return lambda: needed() - once - quantum


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
