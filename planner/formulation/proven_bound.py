"""Lower bounds of a formulation, cheapest first, each certified by the verifier before it is reported.

single steps ─▶ the best with a small tree ─▶ search
                                                │ beside it, while its best plan leaves a gap
first of a set, full trees, several steps, a tree over several steps ◀┘
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from graph.cancellation import check_cancelled_by_caller, seconds_left, unless_cancelled
from planner.bounds import (
    claims,
    first_of_set,
    multi_step_lp,
    multi_step_tree,
    peak_cut,
    step_branch_and_bound,
    step_conflicts,
    step_cut,
)
from planner.bounds.step_branch_and_bound import proven_ticks
from planner.bounds.step_network import FULL_SECONDS, StepModel
from planner.errors import IllegalPlan
from planner.formulation.bound_findings import Findings
from planner.formulation.formulation import ALIGNMENT, Formulation
from planner.formulation.metrics import LowerBound
from planner.problem import Problem
from planner.problem.alternatives import relax_choices
from planner.problem.plan import Goal, Plan
from planner.problem.recompute import order_keeping_live
from planner.verify.certificate import CertificateRejected

# Steps with the largest single-step bound: for which branch and bound runs, and from which several are chosen.
BRANCHED_STEPS, JOINT_STEPS = 2, 6
# Further steps at which the best choice of a step is over the budget.
OVERFULL_STEPS = 3
# With more tasks, the linear program alone of a tree over several steps has to prove more than a tree over others did.
SMALL_TASKS = 200
# Share of the leaves before the search.
QUICK_LEAVES = 1 / 3


def with_lower_bound(formulation: Formulation, quick: bool = False) -> Formulation:
    """Add a lower bound for the goal: ticks within the budget, or peak bytes. Certified if the verifier accepts it.

    `quick` computes the bound of single steps only, the best of them with a small tree; otherwise the multi-step bound
    follows.
    """
    goal, bound = formulation.goal, formulation.bound
    if goal.budget_bytes:
        scope = _CostScope.of(formulation)
        cut = step_cut.bound(scope.problem, scope.goal, scope.budget_bytes)
        bound = scope.tighter(bound, cut.claim)
        if cut.task >= 0 and cut.feasible:
            effort = QUICK_LEAVES * min(1.0, goal.seconds / FULL_SECONDS)
            tree = partial(step_branch_and_bound.bound, scope.problem, scope.goal, scope.budget_bytes, cut.task, effort)
            bound = scope.improved(bound, tree)
    if not goal.budget_bytes or (scope.alignment > 1 and not cut.feasible):
        bound = _tighter(bound, peak_cut.bound(relax_choices(formulation.lowered.problem), goal).claim)
    formulation = certified(formulation, bound)
    return formulation if quick else with_multi_step_bound(formulation)


def with_multi_step_bound(formulation: Formulation, plan: Plan | None = None) -> Formulation:
    """Tighten the cost bound by multi-step and branch-and-bound methods while `plan` leaves a gap.

    For a plan over budget, tighten the peak bound instead. Returns the formulation unchanged without a budget.
    Cancellation of the search for bounds ends it with the best bound found; of its verification, it raises
    CancellationError.
    """
    goal, bound, findings = formulation.goal, formulation.bound, Findings()
    if not goal.budget_bytes:
        return formulation
    if plan is not None and plan.score.bytes_over_budget:
        problem = relax_choices(formulation.lowered.problem)
        tighter = unless_cancelled(None, lambda known: _tighter(known, peak_cut.bound(problem, goal).claim), bound)
    else:
        needed = math.inf if plan is None else plan.score.cost
        *_, tighter = (bound, *tightening_bounds(formulation, lambda: needed, findings))
    return formulation if tighter is bound else certified(formulation, tighter, findings.accepted)


def tightening_bounds(
    formulation: Formulation, needed: Callable[[], float], findings: Findings | None = None
) -> Iterator[LowerBound]:
    """The bound after each method that may tighten it, while it proves less than `needed()` ticks.

    Costs within the budget only. Cancellation ends it.
    """
    findings = findings or Findings()
    scope, bound = _CostScope.of(formulation), formulation.bound
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


def first_of_set_arcs(formulation: Formulation) -> int:
    """Arcs of the networks of the bound over a set of tasks, as `first_of_set.arcs`; 0 without a budget."""
    if not formulation.goal.budget_bytes:
        return 0
    scope = _CostScope.of(formulation)
    return first_of_set.arcs(scope.problem, scope.goal, scope.budget_bytes)


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


@dataclass(frozen=True, eq=False, slots=True)
class _CostScope:
    """What a bound on the cost is about: bytes of the arena where the runtime uses the planned addresses, else live."""

    problem: Problem  # relaxed over its alternatives; sizes are multiples of the alignment
    goal: Goal
    alignment: int  # of addresses in bytes; 1: bytes that are live at once
    quantum: int  # every cost is a multiple of so many ticks

    @classmethod
    def of(cls, formulation: Formulation) -> _CostScope:
        """The scope of a formulation with a budget."""
        exact, arena, alignment = formulation.lowered.problem, formulation.in_arena_bytes(), 1
        problem, goal = exact, arena.goal
        if arena is not formulation:
            # Takeovers that only rounded sizes allow stay: alternatives may allow them, and they weaken the bound.
            problem, alignment = replace(arena.lowered.problem, takeover=exact.takeover), ALIGNMENT
            goal = replace(goal, budget_bytes=-(-(goal.budget_bytes or 0) // alignment) * alignment)
        return cls(relax_choices(problem), goal, alignment, claims.cost_quantum(exact))

    @property
    def budget_bytes(self) -> int:
        return self.goal.budget_bytes or 0

    def tighter(self, bound: LowerBound, claim: claims.Claim | None) -> LowerBound:
        """The bound with a claim about this scope if that is tighter, else the bound unchanged."""
        if claim is not None and claim["of"] == "cost":
            claim = self.of_arena(claim)
        elif self.alignment > 1:
            return bound  # claims on peaks are about live bytes
        return _tighter(bound, claim)

    def of_arena(self, claim: claims.Claim) -> claims.Claim:
        """A claim on the cost with the alignment, and with the next cost that is possible."""
        value = -(-claim["value"] // self.quantum) * self.quantum
        return {**claim, "value": value, **({"alignment": self.alignment} if self.alignment > 1 else {})}

    def improved(self, bound: LowerBound, find: Callable[[], claims.Claim | None]) -> LowerBound:
        """The bound with the claim that `find` returns if that is tighter; unchanged once cancelled."""
        return unless_cancelled(None, lambda known: self.tighter(known, find()), bound)


def certified(formulation: Formulation, bound: LowerBound, accepted: Sequence[claims.Claim] = ()) -> Formulation:
    """The formulation with those claims of `bound` that the verifier accepts, and a warning about any other.

    Those `accepted` are not verified a second time. Raises CancellationError if a caller cancels meanwhile, but not for
    a deadline: the verifier has time of its own.
    """
    check = check_cancelled_by_caller
    problem, kept, reasons = formulation.lowered.problem, list(bound.claims), list[str]()
    unseen = [claim for claim in kept if claim not in accepted]
    if unseen and claims.rejection_reason(problem, unseen, check):
        for k, plain in enumerate(LowerBound.without_search(problem).claims):
            if kept[k] in unseen and (reason := claims.rejection_reason(problem, [kept[k]], check)):
                kept[k] = plain
                reasons.append(f"a lower bound was dropped, because the verifier refused it: {reason}")
    bound = LowerBound.of_claims(kept[0], kept[1], bound.single_run_cost, "certified")
    return replace(formulation, bound=bound, warnings=(*formulation.warnings, *reasons))


def with_claims(formulation: Formulation, given: Sequence[claims.Claim], proof: str) -> Formulation:
    """The formulation with the bound that a saved report claims. Raises IllegalPlan for a claim that is not proven.

    The value must be all that the proof supports, and the scope that of the goal or of a bound without a search. A
    search that was stopped early has the claims of the formulation, with its `proof`.
    """
    problem, plain = formulation.lowered.problem, formulation.bound.claims
    if [claim.get("of") for claim in given] != ["peak", "cost"]:
        raise IllegalPlan(
            "plan.bound.certificate.claims: not a claim on the peak and one on the cost; re-plan the graph"
        )
    for k, claim in enumerate(given):
        if claim == plain[k]:
            continue
        place = f"plan.bound.certificate.claims[{k}]"
        if (formulation.overlaps or formulation.may_copy) and claim["of"] == "cost":
            raise IllegalPlan(f"{place}: not the bound of engines side by side; re-plan the graph")
        if reason := claims.rejection_reason(problem, [claim]):
            raise IllegalPlan(f"{place}: {reason}; re-plan the graph")
        if other := claims.other_scope(claim, *_scope_of_claim(formulation, claim)):
            raise IllegalPlan(f"{place}.{other}: not that of the goal; re-plan the graph")
        if (proven := claims.proven_value(problem, claim)) != claim["value"]:
            raise IllegalPlan(f"{place}.value: the report says {claim['value']}, its proof gives {proven}")
    if proof == formulation.bound.proof and list(given) == list(plain):
        return formulation
    bound = LowerBound.of_claims(given[0], given[1], formulation.bound.single_run_cost, "certified")
    return replace(formulation, bound=bound)


def _scope_of_claim(formulation: Formulation, claim: claims.Claim) -> tuple[Goal, int]:
    """(goal, largest alignment) that a saved claim may state. A claim about live bytes holds for every arena too."""
    if claim.get("alignment", 1) == 1 or not formulation.goal.budget_bytes:
        return formulation.goal, 1
    scope = _CostScope.of(formulation)
    return scope.goal, scope.alignment


def _tighter(bound: LowerBound, claim: claims.Claim | None) -> LowerBound:
    """The bound with `claim` if that is tighter, else the bound unchanged."""
    peak, cost = bound.claims
    if claim is None or claim["value"] <= (peak if claim["of"] == "peak" else cost)["value"]:
        return bound
    pair = (claim, cost) if claim["of"] == "peak" else (peak, claim)
    return LowerBound.of_claims(*pair, bound.single_run_cost, bound.proof)
