"""Exceptions of the public functions.

ValueError
└── BadInput     the model or the request cannot be planned
Exception
└── Stopped      the search was cancelled
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph.errors import Finding

if TYPE_CHECKING:
    from remat.report import Report


class BadInput(ValueError):
    """The model or the request cannot be planned; `findings` name each fault, its location and its remedy."""

    def __init__(self, findings: tuple[Finding, ...]):
        self.findings = findings
        super().__init__("\n".join(map(str, findings)))


class Stopped(Exception):
    """The search was cancelled; `best` is the report of the best plan so far, or None."""

    def __init__(self, best: Report | None = None):
        self.best = best
        super().__init__(
            "stopped before a plan was found"
            if best is None
            else "the search was stopped; the best plan so far is in .best"
        )
