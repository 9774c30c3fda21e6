"""What each repeat is worth, which node binds, and what else would lower the peak (`levers.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.advice import techniques
from planner.algorithms.greedy.gap_closing import without_unread_repeats
from planner.bounds import held_at_end, largest_task
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import recompute_savings
from planner.problem import liveness
from planner.problem.alternatives import relax_choices, resolve_choices
from planner.problem.plan import Plan
from planner.problem.recompute import is_first_run

#: Repeats that are judged one by one: at most so many, and as many as this many steps allow.
MAX_ROWS, MAX_STEPS = 100, 1_000_000


def recompute_worth(question: Formulation, plan: Plan) -> list[dict[str, Any]]:
    """Rows of `figures.recompute_savings`, each with `if_kept`: peak and seconds of the step where the node runs once.

    What ran for the sake of the repeats alone runs less often then as well. None past the limit of rows.
    """
    lowered = question.lowered
    rows, problem = recompute_savings(lowered, plan), resolve_choices(lowered.problem, plan.choices)
    first, task_of = is_first_run(problem, plan.order), {lowered.name_of_task(t): t for t in set(plan.order.tolist())}
    judged = min(MAX_ROWS, MAX_STEPS // max(1, len(plan.order)))
    for place, row in enumerate(rows):
        if place >= judged:
            row["if_kept"] = None
            continue
        kept = without_unread_repeats(problem, plan.order[first | (plan.order != task_of[row["node"]])])
        peak = question.count.counted(kept.peak)
        row["if_kept"] = {
            "peak_bytes": peak,
            "seconds": liveness.cost(problem, kept.order) * problem.tick,
            "fits": question.budget_bytes is None or peak <= question.budget_bytes,
        }
    return rows


def advice_section(question: Formulation, asked: techniques.TechniqueContext) -> dict[str, Any]:
    """The section `advice` of a report."""
    rows = list(techniques.technique_rows(question, asked))
    return {
        "binding": limiting_node(question),
        "levers": [row for row in rows if "why" not in row],
        "left_out": [row for row in rows if "why" in row],
    }


def limiting_node(question: Formulation) -> dict[str, Any]:
    """The node no plan's peak goes below, and how far plans could go if it were not there."""
    task, plain = question.bound.binding_task, relax_choices(question.lowered.problem)
    held = held_at_end.bound(plain)
    rest, node = held, -1
    if task >= 0:
        optional = plain.optional.copy()
        optional[task] = True
        other = largest_task.bound(replace(plain, optional=optional))
        if other.bytes > held:
            rest, node = other.bytes, other.task
    name = question.lowered.name_of_task
    return {
        "node": name(task) if task >= 0 else None,
        "bytes": question.count.counted(question.bound.peak_bytes),
        "next_node": name(node) if node >= 0 else None,
        "next_bytes": question.count.counted(rest),
    }
