"""`remat plan --as wraps`: the plan of whole modules as Python code for `torch.utils.checkpoint`."""

from __future__ import annotations

import sys
from dataclasses import replace

from app.cli.console.files import to_json
from app.render.text import format_bytes, format_percent
from planner.formulation.training_graph import load_model
from planner.pipeline.progress import Outcome
from planner.request.plan_request import Request
from planner.wraps.eager import modules_of
from planner.wraps.wraps import WrapPlan, eager_runtime, wraps_for


def in_eager_mode(request: Request, data: bytes) -> Request:
    """The request for the runtime of a captured step. Raises BadGraph; BadRequest for other models."""
    step = load_model(data, request)
    modules_of(step)
    return replace(request, runtime=eager_runtime(step))


def print_plan(outcome: Outcome, request: Request, as_json: bool) -> int:
    """Print the plan of whole modules, or why there is none. Returns the exit code: 0 done, 1 over budget."""
    plan = wraps_for(outcome.source, request, outcome.report["plan"])
    if as_json:
        print(to_json(plan.to_dict()))
    elif plan.status == "found":
        print(plan.patch, end="")
    else:
        print(over_budget_text(plan), file=sys.stderr)
    return 1 if plan.status == "over_budget" else 0


def over_budget_text(plan: WrapPlan) -> str:
    """Why there is no plan of whole modules, and what else there is."""
    full = plan.full_plan or {}
    lines = [
        f"no plan of whole modules within {format_bytes(plan.budget_bytes)}: the lowest peak found is "
        f"{format_bytes(plan.peak_bytes)}, {format_percent(plan.overhead)} slower"
    ]
    if full.get("status") != "over_budget":
        lines.append(
            f"a plan of single ops peaks at {format_bytes(full.get('peak_bytes'))}, "
            f"{format_percent(full.get('overhead'))} slower: train with remat.torch.optimize"
        )
    return "\n".join(lines)
