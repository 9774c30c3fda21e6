"""What can be wrong with a problem or a plan.

PlannerError
├── BadProblem    columns that contradict each other
├── IllegalPlan   an order that cannot run; names the step, the task and the buffer
└── BadRequest    a goal, budget or planner nobody knows; carries findings like BadGraph
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.errors import Finding as Finding  # one finding record for both rooms


class PlannerError(Exception):
    """Root of everything the planner room raises on purpose."""


class BadProblem(PlannerError):
    """Columns that contradict each other; always a defect of whoever built them."""


class IllegalPlan(PlannerError):
    """A sequence that cannot run as it stands."""


class BadRequest(PlannerError):
    """A question that cannot be answered as put, with its findings."""

    def __init__(self, findings: Sequence[Finding]):
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))

    @classmethod
    def one(cls, code: str, path: str, found: str, expected: str, remedy: str) -> BadRequest:
        return cls([Finding(code, path, found, expected, remedy)])
