"""Exceptions and warnings of training steps.

ValueError
├── NotCaptured      the step cannot be recorded as one graph of fixed shapes
├── OtherStep        a plan belongs to another step than the one at hand
└── BudgetNotMet     no plan within the budget was found; `report` has the lowest peak
UserWarning
└── PlanNotKept      an option of the framework undoes the plan
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat.report import Report


# Imports inside functions: capturing needs the framework only.


class NotCaptured(ValueError):
    """The step cannot be recorded; the message names the op or the line of the user's code, and a remedy."""


class OtherStep(ValueError):
    """A plan belongs to another step: other ops, shapes, element types or inputs."""


class BudgetNotMet(ValueError):
    """No plan within the budget was found. `report` is the plan with the lowest peak found.

    With Inductor `report` is None if no plan peaks lower than Inductor does by itself.
    """

    def __init__(self, report: Report | None, text: str = ""):
        self.report = report
        super().__init__(text if report is None or text else _budget_text(report))


class PlanNotKept(UserWarning):
    """An option of the framework undoes the plan: results are right, its memory is not that of the plan."""


def _budget_text(report: Report) -> str:
    from app.render.text import format_bytes

    plan = report["plan"]
    lowest, proven = plan["smallest_budget_bytes"], plan["smallest_budget_proven"]
    node = f", at {plan['binding_node']}" if plan["binding_node"] else ""
    peak = format_bytes(report.peak_bytes if lowest is None else lowest)
    return (
        f"no plan within {format_bytes(report.budget_bytes or 0)}: the lowest peak {'possible' if proven else 'found'} "
        f"is {peak}{node} (without recomputation {format_bytes(report.baseline_peak_bytes)}); ask for that much, or "
        "take a smaller batch"
    )
