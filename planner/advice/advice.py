"""Advice: worth of each recomputation, the limiting node, and other techniques that lower the peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.advice import techniques
from planner.algorithms.greedy.gap_closing import without_unread_repeats
from planner.bounds import held_at_end, largest_task
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import recompute_savings
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.plan import Plan
from planner.problem.recompute import is_first_run

#: Limits of `if_kept`: recomputed nodes evaluated, and steps evaluated in total.
MAX_ROWS, MAX_STEPS = 100, 1_000_000


def recompute_worth(formulation: Formulation, plan: Plan) -> list[dict[str, Any]]:
    """Rows of `metrics.recompute_savings` with `if_kept`: peak and seconds of the order where the node runs once.

    Recomputations that only served that node are dropped as well. `if_kept` is None past the limit of rows.
    """
    lowered = formulation.lowered
    rows, problem = recompute_savings(lowered, plan), resolve_choices(lowered.problem, plan.choices)
    first, task_of = is_first_run(problem, plan.order), {lowered.name_of_task(t): t for t in set(plan.order.tolist())}
    judged = min(MAX_ROWS, MAX_STEPS // max(1, len(plan.order)))
    for place, row in enumerate(rows):
        if place >= judged:
            row["if_kept"] = None
            continue
        kept = without_unread_repeats(problem, plan.order[first | (plan.order != task_of[row["node"]])])
        alone = formulation.checked(formulation.evaluated(kept.order, plan.planner, plan.choices))
        peak, budget = formulation.counted_peak(alone), formulation.budget_bytes
        row["if_kept"] = {
            "peak_bytes": peak,
            "seconds": alone.score.cost * problem.tick,
            "fits": budget is None or (peak <= budget and formulation.needed_with_addresses(alone) <= budget),
        }
    return rows


def advice_section(formulation: Formulation, context: techniques.TechniqueContext) -> dict[str, Any]:
    """Section `advice` of a report."""
    rows = list(techniques.technique_rows(formulation, context))
    return {
        "binding": limiting_node(formulation),
        "levers": [row for row in rows if "why" not in row],
        "left_out": [row for row in rows if "why" in row],
    }


def limiting_node(formulation: Formulation) -> dict[str, Any]:
    """Node that sets the lower bound on the peak, and the bound without that node."""
    task, plain = formulation.bound.binding_task, relax_choices(formulation.lowered.problem)
    held = held_at_end.bound(plain)
    rest, node = held, -1
    if task >= 0:
        optional = plain.optional.copy()
        optional[task] = True
        other = largest_task.bound(replace(plain, optional=optional))
        if other.bytes > held:
            rest, node = other.bytes, other.task
    name = formulation.lowered.name_of_task
    return {
        "node": name(task) if task >= 0 else None,
        "bytes": formulation.count.counted(formulation.bound.peak_bytes),
        "next_node": name(node) if node >= 0 else None,
        "next_bytes": formulation.count.counted(rest),
    }
