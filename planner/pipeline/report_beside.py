"""The parts of a report that need no plan, made in a thread while the search of a large graph runs.

thread 0   bound ── search ── place ── check ── rewrite ─────────┐
thread 1   check baseline ── mirror ── check ── hash ── document ┴─ report
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from graph.formats.native.identity import model_identity
from graph.formats.native.writer import document
from graph.ir import Graph
from planner.formulation.formulation import Formulation
from planner.problem.plan import Plan
from planner.request.plan_request import Request
from planner.search.improver_beside import cores
from planner.search.short_turns import SHORT_TURNS

#: With fewer tasks all follows the search: that takes less than the thread would slow it.
MIN_TASKS = 10_000


class ReportBeside:
    """The accepted baseline, the plan of MXNet's mirroring, and identity and document of the planned graph."""

    def __init__(self, formulation: Formulation, source: Graph, request: Request):
        self._formulation, self._source = formulation, source
        self._mirrored, self._identity = Future[Plan](), Future[dict[str, Any]]()
        self._document = Future[dict[str, Any]]()  # unused unless the request returns it
        self._is_beside = formulation.lowered.problem.tasks >= MIN_TASKS and cores() > 1
        self.makes_document = self._is_beside and "source" in request.returns
        if self._is_beside:
            threading.Thread(target=self._run, name="remat-report", daemon=True).start()

    def _run(self) -> None:
        with SHORT_TURNS:
            try:
                self._mirrored.set_result(_compared(self._formulation))
                self._identity.set_result(model_identity(self._source))
                if self.makes_document:
                    self._document.set_result(document(self._source))
            except BaseException as error:
                for part in (self._mirrored, self._identity, self._document):
                    if not part.done():
                        part.set_exception(error)

    def mirrored(self, formulation: Formulation) -> Plan:
        """The plan of mirroring, once it and the baseline are accepted; anew for another problem. Raises IllegalPlan.

        `formulation` is that of the search, with its bounds, or one with copies.
        """
        if self._is_beside and formulation.lowered is self._formulation.lowered:
            return self._mirrored.result()
        return _compared(formulation)

    def identity(self) -> dict[str, Any]:
        """As `model_identity`."""
        return dict(self._identity.result()) if self._is_beside else model_identity(self._source)

    def document(self) -> dict[str, Any]:
        """The document of the planned graph."""
        return self._document.result() if self.makes_document else document(self._source)


def _compared(formulation: Formulation) -> Plan:
    """The plan of mirroring, once it and the baseline are accepted."""
    formulation.check_baseline()
    return formulation.mirrored()
