"""Plans of traced steps: searched here, or read from a file and checked against the step at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from planner.report.saved_report import graph_with_choices
from remat.facade import plan
from remat.jax.loops.runs import scan_tasks
from remat.jax.step.buffers import in_buffers_of_results
from remat.jax.step.document import results_of, with_bytes
from remat.jax.step.tasks import Task
from remat.report import Report
from remat.steps import planning
from remat.steps.errors import OtherStep
from remat.steps.planning import PlanSource

if TYPE_CHECKING:
    from remat.jax.capturing import Capture

__all__ = ["PlanSource", "plan_step", "tasks_in_order"]


def plan_step(captured: Capture, budget: str | float | int | None, request: Mapping[str, Any]) -> Report:
    """Plan a traced step for the device at hand. Raises BadInput.

    Which values lie in buffers of results depends on the order. Where those of the plan's order do not, the step is
    planned again with their bytes, until the plan is for what it does.
    """
    document = captured.document
    on_cpu = document["annotations"]["device"] == "cpu"
    fields = {"execute": "no", "layout": "none", **({"device": "cpu-reference"} if on_cpu else {}), **request}
    results = results_of(captured.program)
    placed = in_buffers_of_results(captured.tasks, results)
    while True:
        report = plan(json.dumps(document).encode(), budget, **fields)
        there = in_buffers_of_results(captured.tasks, results, _under_plan(captured, planning.saved_plan(report)))
        if placed <= there:
            return report
        budget = budget and report.budget_bytes  # a share is of the first peak
        document, placed = with_bytes(document, list(placed - there)), placed & there


def tasks_in_order(captured: Capture, given: PlanSource) -> list[Task]:
    """The tasks of a plan made before, as it runs them.

    Raises:
        OtherStep: The plan was made for another step, or with another version of JAX, or is not legal.
        OSError: The file cannot be read.
    """
    saved = planning.read(given)
    made_with = (saved.get("source") or {}).get("annotations", {}).get("framework")
    own = captured.document["annotations"]["framework"]
    if made_with is not None and made_with != own:
        raise OtherStep(f"the plan was made with {made_with}, this is {own}; plan again, or install those versions")
    planning.order_for(captured.document, saved)
    return _under_plan(captured, saved)


def _under_plan(captured: Capture, saved: Mapping[str, Any]) -> list[Task]:
    """The tasks in the order of a plan; scans save and recompute what it chose for them."""
    named = {task.name: task for task in captured.tasks}
    if captured.scans:
        named |= scan_tasks(captured.program, captured.scans, graph_with_choices(saved))
    return [named[name] for name, _ in saved["plan"]["order"]]
