"""Plans that Inductor can follow: which values the forward pass saves; the backward pass recomputes the others once.

    plans of several budgets ──▶ what each keeps between the passes ──▶ forward, backward ──▶ Inductor's code ──▶ peak

Inductor orders, fuses and reuses by itself, so the peak of a candidate is that of the code that it writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.errors import BadGraph
from planner.errors import BadRequest
from planner.pipeline.curve import curve
from planner.request.budget import parse_budget, parse_fraction
from planner.request.curve_and_fit_request import parse_curve
from planner.request.plan_request import DEFAULT_OVERHEAD
from remat.errors import BadInput
from remat.report import Report
from remat.torch.inductor.lowering import Passes, moments
from remat.torch.step.document import TANGENTS
from remat.torch.step.joint import Joint, Result
from remat.torch.step.measure import workspaces
from remat.torch.step.planning import request_fields
from remat.torch.step.recording import Step
from remat.torch.step.split import crossing, split

BUDGETS = ("90%", "80%", "70%", "60%", "50%", "40%", "30%", 0)  # of the candidates, of the peak without recomputation
Order = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A step as Inductor compiles it.

    Attributes:
        peak_bytes: Predicted peak of the step.
        plain_peak_bytes: Predicted peak as Inductor divides the step by itself.
        overhead: Extra time of the plan whose saved values these are, before fusion; 0 for Inductor's own division.
        saved: Names of the ops whose results are saved for the backward pass.
        recomputed: Names of the ops that the backward pass recomputes.
        report: The plan whose saved values these are; None for Inductor's own division, and for one from a file.
    """

    peak_bytes: int
    plain_peak_bytes: int
    overhead: float
    saved: tuple[str, ...]
    recomputed: tuple[str, ...]
    report: Report | None


class SavedSets:
    """Saved sets of one step, and the peaks of the code that Inductor writes for them.

    Parameters:
        step: The step, with what Inductor fuses.
        plain: Divides the step as Inductor does.
        measure: Measure the workspaces of the ops that the code calls.
    """

    def __init__(self, step: Step, plain: Callable[[], Passes], measure: bool):
        assert step.fusion is not None
        self.step, self.joint, self.fusion = step, step.joint, step.fusion
        self.measure = measure
        self._workspaces: dict[str, int] = {}
        self.plain = plain()
        self.plain_peak = self.peak(self.plain)

    def peak(self, passes: Passes) -> int:
        """Predicted peak of two passes in bytes."""
        found = moments(passes)
        if self.measure:
            called = (moment for moment in found if moment.target.namespace == "aten")
            new = {moment.call: moment.example for moment in called if moment.call not in self._workspaces}
            self._workspaces |= workspaces(new)
        return max(moment.live_bytes + self._workspaces.get(moment.call, 0) for moment in found)

    def of_plan(self, planned: Sequence[tuple[str, int]], report: Report | None = None) -> tuple[Compiled, Passes]:
        """A plan as Inductor can follow it: what it keeps between the passes is saved, all else recomputed once."""
        order = once(self.joint, crossing(self.joint, self.fusion.order(planned)))
        passes = split(self.joint, order, functional=True)
        found = Compiled(
            self.peak(passes),
            self.plain_peak,
            0.0 if report is None else report.overhead,
            tuple(result.node.name for result in crossing(self.joint, order) if result.node.op == "call_function"),
            tuple(name for name, run in order if run),
            report,
        )
        return found, passes

    def candidates(self, request: Mapping[str, Any]) -> list[Report]:
        """Plans of several budgets, the fastest first. Raises BadInput."""
        try:
            parsed = parse_curve({**request_fields(self.step, request), "budgets": list(BUDGETS)}, ("source",))
            outcomes = curve(json.dumps(self.step.document).encode(), parsed).outcomes
        except (BadGraph, BadRequest) as error:
            raise BadInput(error.findings) from None
        return sorted((Report(outcome) for outcome in outcomes), key=lambda report: report.overhead)


def once(joint: Joint, saved: Sequence[Result]) -> Order:
    """The order of a step in which each value that is not saved is recomputed once, before its first reader.

    Parameters:
        joint: The step.
        saved: What crosses between the passes under a legal plan, so that all else may be recomputed.
    """
    order = [(task.name, 0) for task in joint.tasks if not joint.is_backward(task)]
    order.append((TANGENTS, 0))
    kept, ran = set(saved), set()

    def add(results: Sequence[Result]) -> None:
        """Recompute what is missing of some results, sources first."""
        stack = list(results)
        while stack:
            result = stack[-1]
            node = result.node
            if result in kept or node in ran or node.op != "call_function" or joint.is_backward(node):
                stack.pop()
                continue
            missing = [
                source
                for source in joint.reads(node)
                if source not in kept and source.node not in ran and source.node.op == "call_function"
            ]
            if missing:
                stack += missing
                continue
            ran.add(node)
            order.append((node.name, 1))
            stack.pop()

    for task in joint.tasks:
        if joint.is_backward(task):
            add(joint.reads(task))
            order.append((task.name, 0))
    add([joint.result(node) for node in joint.outputs[joint.forward_outputs :] if node is not None])
    return order


def searched(
    sets: SavedSets, budget: str | float | int | None, request: Mapping[str, Any]
) -> tuple[Compiled, Passes, int | None]:
    """The fastest saved set whose code peaks within a budget, its passes, and the budget in bytes.

    Without a budget, the lowest peak within `max_overhead`; if none is within the budget, the lowest peak found.
    Inductor's own division of the step is the first candidate. Raises BadInput.
    """
    fields = dict(request)
    try:
        most = parse_fraction(fields.pop("max_overhead", DEFAULT_OVERHEAD), "max_overhead")
        limit = None if budget is None else parse_budget(budget).of(sets.plain_peak)
    except BadRequest as error:
        raise BadInput(error.findings) from None
    tried: set[tuple[tuple[str, int], ...]] = set()
    best, passes = Compiled(sets.plain_peak, sets.plain_peak, 0.0, (), (), None), sets.plain
    if limit is None or sets.plain_peak > limit:
        for report in sets.candidates(fields):
            if limit is None and report.overhead > most:
                break
            if tuple(report.order) in tried:
                continue
            tried.add(tuple(report.order))
            found, divided = sets.of_plan(report.order, report)
            if found.peak_bytes < best.peak_bytes:
                best, passes = found, divided
            if limit is not None and best.peak_bytes <= limit:
                break
    return best, passes, limit
