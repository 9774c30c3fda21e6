"""Lower bounds of a formulation, cheapest first, each certified by the verifier before it is reported.

single steps ─▶ the best with a small tree ─▶ search
                                                │ beside it, while its best plan leaves a gap
first of a set, full trees, several steps, a tree over several steps ◀┘
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from graph.cancellation import check_cancelled_by_caller, unless_cancelled
from planner.bounds import claims, first_of_set, peak_cut, step_branch_and_bound, step_cut
from planner.bounds.step_network import effort_share
from planner.formulation.formulation import Formulation
from planner.formulation.lower_bound import LowerBound
from planner.formulation.proven_bound.cost_scope import CostScope
from planner.formulation.proven_bound.findings import Findings
from planner.formulation.proven_bound.methods import tightening_bounds
from planner.problem.alternatives import relax_choices
from planner.problem.plan import Plan

# Share of the leaves before the search.
QUICK_LEAVES = 1 / 3


def with_lower_bound(formulation: Formulation, quick: bool = False) -> Formulation:
    """Add a lower bound for the goal: ticks within the budget, or peak bytes. Certified if the verifier accepts it.

    `quick` computes the bound of single steps only, the best of them with a small tree; otherwise the multi-step bound
    follows.
    """
    goal, bound = formulation.goal, formulation.bound
    if goal.budget_bytes:
        scope = CostScope.of(formulation)
        cut = step_cut.bound(scope.problem, scope.goal, scope.budget_bytes)
        bound = scope.tighter(bound, cut.claim)
        if cut.task >= 0 and cut.feasible:
            effort = QUICK_LEAVES * effort_share(goal)
            tree = partial(step_branch_and_bound.bound, scope.problem, scope.goal, scope.budget_bytes, cut.task, effort)
            bound = scope.improved(bound, tree)
    if not goal.budget_bytes or (scope.alignment > 1 and not cut.feasible):
        bound = bound.with_claim(peak_cut.bound(relax_choices(formulation.lowered.problem), goal).claim)
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
        tighter = unless_cancelled(None, lambda known: known.with_claim(peak_cut.bound(problem, goal).claim), bound)
    else:
        needed = math.inf if plan is None else plan.score.cost
        *_, tighter = (bound, *tightening_bounds(formulation, lambda: needed, findings))
    return formulation if tighter is bound else certified(formulation, tighter, findings.accepted)


def first_of_set_arcs(formulation: Formulation) -> int:
    """Arcs of the networks of the bound over a set of tasks, as `first_of_set.arcs`; 0 without a budget."""
    if not formulation.goal.budget_bytes:
        return 0
    scope = CostScope.of(formulation)
    return first_of_set.arcs(scope.problem, scope.goal, scope.budget_bytes)


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
