"""Advice: worth of each recomputation, the limiting node, and other techniques that lower the peak."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.advice import techniques
from planner.bounds import held_at_end, largest_task
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import recompute_savings
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.plan import Plan
from planner.problem.recompute import is_first_run
from planner.search.unread_runs import without_steps

#: Limits of `if_kept`: recomputed nodes evaluated, and steps evaluated in total.
MAX_ROWS, MAX_STEPS = 100, 40_000
#: Repairs that look for addresses: moves for each storage, and repairs times the square of the steps in total.
MOVES, MAX_REPAIRED = 2, 3_000_000


def recompute_worth(formulation: Formulation, plan: Plan) -> list[dict[str, Any]]:
    """Rows of `metrics.recompute_savings` with `if_kept`: peak and seconds of the order where the node runs once.

    Recomputations that only served that node are dropped as well. `if_kept` is None past the limit of rows. `fits`
    says whether addresses were found too, where the runtime uses them; None past the limit of repairs.
    """
    lowered, steps = formulation.lowered, len(plan.order)
    rows, problem = recompute_savings(lowered, plan), resolve_choices(lowered.problem, plan.choices)
    task_of = {lowered.name_of_task(task): task for task in set(plan.order.tolist())}
    repeated = ~is_first_run(problem, plan.order)
    judged = min(MAX_ROWS, MAX_STEPS // max(1, steps))
    repairs = MAX_REPAIRED // max(1, steps**2)
    for place, row in enumerate(rows):
        if place >= judged:
            row["if_kept"] = None
            continue
        dropped = np.flatnonzero(repeated & (plan.order == task_of[row["node"]]))
        kept = without_steps(problem, plan.order, np.ones(steps, bool), dropped)
        alone = formulation.checked(formulation.evaluated(plan.order[kept], plan.planner, plan.choices))
        peak, budget = formulation.counted_peak(alone), formulation.budget_bytes
        fits: bool | None = budget is None or peak <= budget
        if fits and budget is not None and formulation.places:
            fits = _has_addresses(formulation, alone) if repairs > 0 else None
            repairs -= 1
        row["if_kept"] = {"peak_bytes": peak, "seconds": alone.score.cost * problem.tick, "fits": fits}
    return rows


def _has_addresses(formulation: Formulation, plan: Plan) -> bool:
    """Whether sweeps, or a short repair of their addresses, stay within the budget; depends on the order alone."""
    swept = formulation.swept(plan)
    if not formulation.bytes_over_budget(swept):
        return True
    if formulation.has_engines:
        return False
    steps = np.arange(len(plan.order))
    return formulation.packed_from(plan, swept, steps, MOVES, lambda: False) is not None


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
