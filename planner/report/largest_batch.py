"""Largest batch at which a saved plan fits a memory, on the model before a change and after it.

Nothing is searched for: the plan is replayed at each batch that is tried, as `regression.drift` replays it.

    batch 1 ── 2 ── prediction from both peaks ── away from it in doubled steps ── bisection
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graph.analysis.devices import resolve_device
from graph.errors import BadGraph
from planner.errors import BadRequest
from planner.formulation.formulate import formulate
from planner.formulation.training_graph import load_model, training_graph
from planner.report import saved_report
from planner.report.regression import Drift, is_over_budget, replayed_version, without_goal
from planner.request.plan_request import PARSERS, Request, parse_request

MAX_TRIALS, MAX_BATCH = 40, 2**31 - 1


@dataclass(frozen=True, eq=False, slots=True)
class Trial:
    """The plan at one batch."""

    peak_bytes: int | None  # None: the model has no such batch, or the plan does not run at it
    fits: bool
    why: str = ""  # message where `peak_bytes` is None


def memory_bytes(memory: str) -> int:
    """Bytes of a device's name, or of a size such as 80GiB. Raises BadRequest."""
    given = PARSERS["fits"](memory, "fits")
    return given if isinstance(given, int) else int(resolve_device(given).memory_bytes)


def largest_batches(
    found: Drift, report: Mapping[str, Any], model: bytes, memory: str, before: bytes | None = None
) -> dict[str, Any]:
    """Section `largest_batch` of a check: `was` and `now`, null where unknown, and then `why`.

    `before` is the model of the saved plan. Without it the batch of the report's source is changed, which only graphs
    without fixed lengths in their middle allow. Raises BadRequest for a memory that is neither a device nor bytes.
    """
    limit, request = memory_bytes(memory), parse_request(report["request"])
    if before is None:
        source = json.dumps(report["source"]).encode()
        sides = [(source, saved_report.parse_embedded(report)[0]), (model, request)]
    else:
        sides = [(before, request), (model, request)]
    sizes, reasons = zip(*(_Batches(found, report, *side, limit).largest() for side in sides), strict=True)
    return {"fits": memory, "was": sizes[0], "now": sizes[1], "why": {"was": reasons[0], "now": reasons[1]}}


class _Batches:
    """The batches of one model, each tried once."""

    def __init__(self, found: Drift, report: Mapping[str, Any], model: bytes, request: Request, limit: int):
        self.found, self.report, self.model, self.limit = found, report, model, limit
        self.request = replace(without_goal(request), counts="everything", batch=None, shapes=())
        self.trials: dict[int, Trial] = {}

    def largest(self) -> tuple[int | None, str]:
        """(largest batch that fits, ""), or (None, why it is unknown); 0 if batch 1 does not fit."""
        first, second = self.at(1), self.at(2)
        if first.peak_bytes is None or second.peak_bytes is None:
            return None, first.why or second.why
        if not (first.fits and second.fits):
            return (1 if first.fits else 0), ""
        if second.peak_bytes <= first.peak_bytes:
            return None, "the peak does not grow with the batch"
        growth = second.peak_bytes - first.peak_bytes
        low, high, step = 2, MAX_BATCH + 1, 1
        batch = min(max(low + (self.limit - second.peak_bytes) // growth, low + 1), MAX_BATCH)
        while high - low > 1 and len(self.trials) < MAX_TRIALS:
            batch = batch if low < batch < high else (low + high) // 2
            low, high = (batch, high) if self.at(batch).fits else (low, batch)
            batch = low + step if batch == low else high - step
            step *= 2
        return low, ""

    def at(self, batch: int) -> Trial:
        """The plan at a batch: its peak, and whether it fits with its addresses."""
        if batch not in self.trials:
            self.trials[batch] = self._trial(replace(self.request, batch=batch))
        return self.trials[batch]

    def _trial(self, request: Request) -> Trial:
        try:
            source, _ = training_graph(self.model, load_model(self.model, request), request)
            formulation = formulate(source, request)
        except (BadGraph, BadRequest) as error:
            return Trial(None, False, str(error.findings[0]) if error.findings else str(error))
        version, replay = replayed_version(self.report, self.found.before, formulation)
        if version.plan is None:
            return Trial(None, False, f"the plan does not run: {replay['why']}")
        peak = formulation.counted_peak(version.plan)
        return Trial(peak, peak <= self.limit and not is_over_budget(version, self.limit, request.layout))
