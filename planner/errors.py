"""Exceptions of the planner.

PlannerError
├── BadProblem    columns that contradict each other
├── IllegalPlan   an order that cannot run; names the step, the task and the buffer
└── BadRequest    an invalid goal, budget or planner name; carries findings like BadGraph
"""

from __future__ import annotations

from collections.abc import Sequence

from graph.errors import Finding as Finding  # one finding record for both rooms


class PlannerError(Exception):
    """Base class of all planner errors."""


class BadProblem(PlannerError):
    """Columns that contradict each other; always a defect of the code that built them."""


class IllegalPlan(PlannerError):
    """An order that cannot run, or a plan whose claims are wrong."""


class BadRequest(PlannerError):
    """Invalid request, with one finding per invalid field."""

    def __init__(self, findings: Sequence[Finding]):
        self.findings = tuple(findings)
        super().__init__("\n".join(map(str, self.findings)))

    @classmethod
    def one(cls, code: str, path: str, found: str, expected: str, remedy: str) -> BadRequest:
        """The error with a single finding."""
        return cls([Finding(code, path, found, expected, remedy)])
