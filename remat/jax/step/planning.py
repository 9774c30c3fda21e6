"""Plans of traced steps: searched here, or read from a file and checked against the step at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from remat.facade import plan
from remat.jax.step.buffers import in_buffers_of_results
from remat.jax.step.document import results_of, with_bytes
from remat.jax.step.program import Program
from remat.jax.step.tasks import Task
from remat.report import Report
from remat.steps import planning
from remat.steps.errors import OtherStep
from remat.steps.planning import PlanSource

__all__ = ["PlanSource", "order_for", "plan_step"]


def plan_step(
    document: dict[str, Any],
    program: Program,
    tasks: Sequence[Task],
    budget: str | float | int | None,
    request: Mapping[str, Any],
) -> Report:
    """Plan a traced step, with its document, for the device at hand. Raises BadInput.

    Which values lie in buffers of results depends on the order. Where those of the plan's order do not, the step is
    planned again with their bytes, until the plan is for what it does.
    """
    on_cpu = document["annotations"]["device"] == "cpu"
    fields = {"execute": "no", "layout": "none", **({"device": "cpu-reference"} if on_cpu else {}), **request}
    results = results_of(program)
    placed = in_buffers_of_results(tasks, results)
    named = {task.name: task for task in tasks}
    while True:
        report = plan(json.dumps(document).encode(), budget, **fields)
        there = in_buffers_of_results(tasks, results, [named[name] for name, _ in report.order])
        if placed <= there:
            return report
        budget = budget and report.budget_bytes  # a share is of the first peak
        document, placed = with_bytes(document, list(placed - there)), placed & there


def order_for(document: Mapping[str, Any], given: PlanSource) -> list[tuple[str, int]]:
    """The order of a plan made before, as `remat.steps.planning.order_for`, of the same version of JAX."""
    saved = planning.read(given)
    made_with = (saved.get("source") or {}).get("annotations", {}).get("framework")
    own = document["annotations"]["framework"]
    if made_with is not None and made_with != own:
        raise OtherStep(f"the plan was made with {made_with}, this is {own}; plan again, or install those versions")
    return planning.order_for(document, saved)
