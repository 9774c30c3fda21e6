"""Warnings of a report about its plan: gradients, addresses, host memory, collectives and the allocator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graph.analysis.effects import effect_of
from graph.ir import Effect
from graph.training import gradient_check
from planner.formulation.execution_check import ExecutionResult
from planner.formulation.formulation import Formulation
from planner.problem.plan import Plan
from planner.problem.recompute import is_first_run


def gradient_warnings(ran: ExecutionResult) -> list[str]:
    """Warning if gradients of the training graph differ from finite differences."""
    if ran.gradients is None or ran.gradients.status != gradient_check.DIFFERENT:
        return []
    return [f"{ran.gradients.why}: the gradients of this model may be wrong; please report it"]


def arena_warnings(formulation: Formulation, plan: Plan) -> list[str]:
    """Warning if the peak is within the budget and the arena is not."""
    past, budget = formulation.bytes_over_budget(plan), formulation.budget_bytes
    if formulation.counted_peak(plan) > (budget or 0) or not past or not budget:
        return []
    return [
        f"the peak is within the budget, but the arena exceeds it by {past / budget:.2%} (alignment and fragmentation "
        "of addresses): give the search more time, or raise the budget by that much"
    ]


def host_memory_warnings(formulation: Formulation, plan: Plan) -> list[str]:
    """Warning if the host memory is too small for the copies of the plan."""
    over = formulation.host_bytes_over_limit(plan)
    return [f"host_memory: copies need {over:,} bytes more: raise it by that much"] if over else []


def collective_warnings(formulation: Formulation, plan: Plan) -> list[str]:
    """Warning if a plan recomputes collectives, which ranks with another plan do not."""
    lowered, again = formulation.lowered, plan.order[~is_first_run(formulation.lowered.problem, plan.order)]
    nodes = (lowered.graph.nodes[lowered.task_node[task]] for task in again.tolist())
    names = list(dict.fromkeys(node.name for node in nodes if effect_of(lowered.graph, node) is Effect.COLLECTIVE))
    if not names:
        return []
    return [
        f"the plan recomputes collectives ({len(names)} of them, the first is {names[0]}): every rank has to run this "
        "plan, since ranks with different plans would wait for each other forever"
    ]


def allocator_warnings(reserved: Mapping[str, Any]) -> list[str]:
    """Warning if a plan that fits the memory runs out of it, because the allocator's segments are fragmented."""
    if reserved["runs"]:
        return []
    default, expandable = (
        f"{reserved[name] / 2**30:.2f} GiB" for name in ("reserved_bytes", "expandable_reserved_bytes")
    )
    return [
        f"the peak fits, but PyTorch's caching allocator reserves {default} (fragmentation): set "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which reserves {expandable}, or lower the budget"
    ]
