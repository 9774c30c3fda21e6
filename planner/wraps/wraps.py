"""The best plan of whole modules for a captured step: `wraps_for`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graph.ir import Graph
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.request.plan_request import Request
from planner.wraps.choose import Choice, Chooser
from planner.wraps.eager import EagerStep
from planner.wraps.patch import patch

FORMAT = "remat-wraps/1"


@dataclass(frozen=True, eq=False, slots=True)
class WrapPlan:
    """Which modules of a PyTorch model to wrap in `torch.utils.checkpoint`.

    Sizes are bytes of one step in eager mode, times are shares of the step without wraps.
    """

    model: str
    modules: Mapping[str, tuple[str, ...]]  # path of a module to wrap -> ops whose results it keeps
    status: str  # "found", or "over_budget": then these are the modules of the lowest peak found
    peak_bytes: int
    overhead: float
    baseline_peak_bytes: int  # without wraps
    budget_bytes: int | None
    barred: Mapping[str, str]  # path of a module that cannot be wrapped -> why
    statistics: tuple[str, ...]  # wrapped modules with batch norm in training mode
    full_plan: Mapping[str, Any] | None = None  # peak_bytes and overhead of the plan of single ops

    @property
    def patch(self) -> str:
        """The plan as Python code that needs PyTorch only: a function `wrap(model)`."""
        return patch(self.modules, bool(self.statistics), self._figures())

    def to_dict(self) -> dict[str, Any]:
        """The plan as a dict of JSON types."""
        return {
            "format": FORMAT,
            "model": self.model,
            "status": self.status,
            "modules": {path: list(ops) for path, ops in self.modules.items()},
            "peak_bytes": self.peak_bytes,
            "overhead": self.overhead,
            "baseline_peak_bytes": self.baseline_peak_bytes,
            "budget_bytes": self.budget_bytes,
            "barred": dict(self.barred),
            "full_plan": None if self.full_plan is None else dict(self.full_plan),
            "patch": self.patch,
        }

    def _figures(self) -> list[str]:
        """The figures of the plan, for people."""
        lines = [
            f"{self.model}: predicted peak {self.peak_bytes:,} bytes ({self.baseline_peak_bytes:,} without wraps), "
            f"{self.overhead:.1%} slower."
        ]
        if self.full_plan is not None:
            peak, slower = self.full_plan["peak_bytes"], self.full_plan["overhead"]
            lines.append(f"A plan of single ops (remat.torch.optimize): peak {peak:,} bytes, {slower:.1%} slower.")
        lines += [f"Cannot be wrapped: {path}: {why}." for path, why in self.barred.items()]
        return lines


def wraps_for(source: Graph, request: Request, full_plan: Mapping[str, Any] | None = None) -> WrapPlan:
    """The best plan of whole modules found for a captured step, with the goal of `request`.

    `full_plan` is the section `plan` of a report with the same goal, to compare with. The runtime is eager PyTorch,
    whichever the request names. Raises BadRequest for a document that does not name its modules.
    """
    formulation = formulate(source, replace(request, runtime=eager_runtime(source)))
    step = EagerStep.of(formulation.lowered)
    chooser, goal = Chooser(step), formulation.goal
    choice: Choice | None
    if goal.budget_bytes:
        choice = chooser.within(goal.budget_bytes)
    else:
        choice = chooser.lowest(None if goal.budget_bytes == 0 else goal.cost_limit(step.problem))
    status = "over_budget" if choice is None else "found"
    return _plan(formulation, step, chooser, choice or chooser.lowest(), status, full_plan)


def eager_runtime(source: Graph) -> str:
    """The target runtime of eager PyTorch on the device of a captured step."""
    return "torch-eager-cpu" if source.annotations.get("device") == "cpu" else "torch-eager"


def _plan(
    formulation: Formulation,
    step: EagerStep,
    chooser: Chooser,
    choice: Choice,
    status: str,
    full_plan: Mapping[str, Any] | None,
) -> WrapPlan:
    barred = {path: why for path in step.modules if (why := step.why_not(path))}
    return WrapPlan(
        formulation.lowered.graph.name,
        {path: tuple(sorted(choice.wraps[path])) for path in step.modules if path in choice.wraps},
        status,
        formulation.count.counted(choice.peak_bytes),
        formulation.overhead(choice.ticks),
        formulation.count.counted(chooser.unwrapped.peak_bytes),
        formulation.budget_bytes,
        {path: why for path, why in barred.items() if not any(path.startswith(f"{other}.") for other in barred)},
        tuple(path for path in choice.wraps if step.has_statistics(path)),
        None if full_plan is None else {name: full_plan[name] for name in ("peak_bytes", "overhead", "status")},
    )
