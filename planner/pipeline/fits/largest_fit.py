"""Fit: the largest batch, or the longest sequence, whose training step fits a memory within a maximum overhead.

`size_search.py` finds the size, within a share of the time; the rest is for the plan at that size. With `offload`, a
size that no plan without copies to the host fits is planned with copies (`copies.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.formulation.execution_check import NOT_EXECUTED, ExecutionResult
from planner.formulation.formulation import Formulation
from planner.formulation.offloading import why_no_copies
from planner.formulation.search_result import SearchResult
from planner.pipeline.fits.dimension import growing_dimension
from planner.pipeline.fits.size_search import SizeSearch
from planner.pipeline.fits.size_trials import SizeTrial, SizeTrials
from planner.pipeline.progress import Outcome, Progress
from planner.pipeline.solve import solve
from planner.pipeline.solve_stages import SolveStages
from planner.request.curve_and_fit_request import FitRequest
from planner.request.plan_request import Request

FORMAT = "remat-fit/1"


@dataclass(frozen=True, eq=False, slots=True)
class FitResult:
    """The document `remat-fit/1`, and the outcome at the largest size."""

    document: dict[str, Any]
    outcome: Outcome | None  # None: no size fits
    request: Request  # of the outcome, with the size bound

    @property
    def exit_code(self) -> int:
        """0 done, 1 no size fits, 3 stopped, 4 internal error."""
        return 1 if self.outcome is None else self.outcome.exit_code


def fit(
    model: bytes | Graph,
    fit_request: FitRequest,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
) -> FitResult:
    """Find the largest size that fits, with its plan. If no size fits, that is a result, not an error.

    Setting `cancel` ends the search; the largest size found to fit by then is returned.
    Raises BadGraph, BadRequest; CancellationError if `cancel` is set before size 1 was tried.
    """
    stages = SolveStages(on_progress, cancel or threading.Event())
    with gc_paused(), stages("plan"):
        dimension = growing_dimension(model, fit_request, limits)
        sizes = SizeSearch(SizeTrials(model, fit_request, dimension, limits, stages))
        best = sizes.largest()
    outcome, request = None, fit_request.request
    if best is not None and best.plan is not None and best.formulation is not None:
        request = sizes.final_request(best)
        final = partial(solve, model, request, limits=limits, on_progress=on_progress, cancel=stages.cancel)
        known = SearchResult.of(best.formulation, best.plan, (), False, ExecutionResult(NOT_EXECUTED))
        seeds = [best.plan.candidate] if best.formulation.lowered.copies is None else []  # one with copies seeds none
        outcome = final(seeds=seeds)
        # The last plan may take less time, with addresses that do not fit, or more, once those were made to fit.
        if not outcome.report["plan"]["within_budget"] or best.plan.score < outcome.plan.score:
            outcome = final(known=known)
    return FitResult(_document(fit_request, dimension, sizes, best, outcome, stages), outcome, request)


def _no_copies(request: Request, best: SizeTrial | None, smallest: Formulation | None) -> list[str]:
    """Warnings that there are no copies to the host, beside those of the report."""
    if best is not None:
        return [f"no copies to the host at {best.size}: {best.small_host}"] if best.small_host else []
    why = why_no_copies(smallest, request) if request.offload and smallest is not None else ""
    return [f"no copies to the host: {why}"] if why else []


def _document(
    fit_request: FitRequest,
    dimension: str | None,
    sizes: SizeSearch,
    best: SizeTrial | None,
    outcome: Outcome | None,
    stages: SolveStages,
) -> dict[str, Any]:
    """The document `remat-fit/1`."""
    tried = dict(sorted(sizes.trials.tried.items()))
    known = next(iter(tried.values())).formulation
    size = 0 if best is None else best.size
    after = next((trial.row() for larger, trial in tried.items() if larger > size), None)
    report = {} if outcome is None else outcome.report
    return {
        "format": FORMAT,
        "model": report.get("model"),
        "grow": fit_request.grow,
        "dimension": dimension,
        "size": None if best is None else best.size,
        "budget_bytes": None if known is None else known.budget_bytes,
        "max_overhead": fit_request.max_overhead,
        "next": after,
        "tried": [trial.row() for trial in tried.values()],
        "plan": report.get("plan"),
        "checked": True,
        "warnings": [*sizes.notes, *_no_copies(fit_request.request, best, known), *report.get("warnings", ())],
        "stopped": stages.cancel.is_set(),
        "elapsed": {"sizes": round(stages.elapsed["plan"], 6), **report.get("elapsed", {})},
    }
