"""Regression check: drift of peak and time between the model of a saved plan and the current model.

    report ──source──▶ saved columns ──order──▶ saved plan ─╮
       ╰──request──╮                        ╰──by name──╮   ├──▶ drift, and values that hold more at the peak
                 model ──▶ current columns ──order──────┴───╯

Nothing is searched: the plan's order is replayed on the current model. Runs of removed nodes are left out; added nodes
run once, right after the node that precedes them in the document. The same code measures both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.formats.native.identity import model_identity
from planner.errors import BadRequest, IllegalPlan
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import parse_choices
from planner.formulation.training_graph import load_model, training_graph
from planner.lowering.lowered_graph import LoweredGraph
from planner.lowering.realize import node_sequence
from planner.problem.plan import Plan
from planner.problem.topological import edges
from planner.report import saved_report
from planner.report.growth import HELD, TIME_TOLERANCE, ModelVersion, holds_more, takes_longer
from planner.report.report import largest_holder
from planner.request.plan_request import Request, parse_request
from planner.verify.checker import apply_choices, check_order

FORMAT = "remat-check/1"
MAX_BLAMED = 10
#: Limit on the search for addresses of the replayed plan within its budget; a slice takes about 50 ms.
PACKING_SLICES = 40


@dataclass(frozen=True, eq=False, slots=True)
class Drift:
    """The document `remat-check/1`, with both versions."""

    document: dict[str, Any]
    before: ModelVersion
    after: ModelVersion

    def timeline(self) -> dict[str, Any]:
        """Section `timeline` of a report: bytes of every step of the plan on the saved model and on the current one.

        Of the steps without a plan if the plan does not run on the current model.
        """
        before, after = self.before.plan, self.after.plan
        if before is None or after is None:
            before, after = self.before.formulation.baseline, self.after.formulation.baseline
        sides = ("baseline_", self.before.formulation, before), ("", self.after.formulation, after)
        found: dict[str, Any] = {}
        for prefix, formulation, plan in sides:
            steps = node_sequence(formulation.lowered, plan).step_bytes + formulation.count.counted(0)
            found |= {f"{prefix}step_bytes": steps.tolist(), f"{prefix}holder": largest_holder(formulation, plan)}
        return found


def drift(report: Mapping[str, Any], model: bytes, max_drift: float) -> Drift:
    """Drift of a saved plan's figures on `model`, read with the plan's own request.

    `max_drift` is the largest growth allowed, as a share. Raises BadRequest for a report without its source or with a
    request that no longer fits the model; IllegalPlan if the order is illegal on its own source; BadGraph for a model
    that cannot be read.
    """
    saved = _saved_version(report)
    request = parse_request(report["request"])
    if request.shapes:
        request = request.under(request.shapes[_worst(report, len(request.shapes))])
    source, notes = training_graph(model, load_model(model, request), request)
    formulation = formulate(source, without_goal(request))
    current, replay = replayed_version(report, saved, formulation)
    budget = report["plan"].get("budget_bytes")
    rows = _rows(saved, current)
    over = is_over_budget(current, budget, request.layout)
    drifted = [row["what"] for row in rows if row["drift"] is None or row["drift"] > max_drift]
    larger_values, slower_nodes = holds_more(saved, current), takes_longer(saved, current)
    document = {
        "format": FORMAT,
        "within": not drifted and not over,
        "max_drift": max_drift,
        "was": dict(report["model"]) if isinstance(report.get("model"), Mapping) else {},
        "now": model_identity(source),
        "figures": rows,
        "drifted": drifted,
        "budget_bytes": budget,
        "over_budget": over,
        "replay": replay,
        "blame": _blame(drifted, over, replay, larger_values, slower_nodes),
        "holds_more": larger_values,
        "takes_longer": slower_nodes,
        "warnings": [*notes, *formulation.warnings, *_figure_warnings(report, saved)],
    }
    return Drift(document, saved, current)


def is_over_budget(version: ModelVersion, budget: int | None, layout: str) -> bool:
    """Whether the plan needs more than the budget, after a search for addresses within it."""
    if not budget or version.plan is None:
        return False
    formulation = replace(version.formulation, budget_bytes=budget)
    placed = formulation.placed(version.plan, "none" if layout == "none" else "fast")
    if formulation.bytes_over_budget(placed) and formulation.counted_peak(placed) <= budget and formulation.places:
        monitor = formulation.monitor()
        monitor.iterations = PACKING_SLICES
        placed = formulation.packed(placed, monitor)
    return formulation.bytes_over_budget(placed) > 0


def _worst(report: Mapping[str, Any], sets: int) -> int:
    """Number of the set of shapes that a report is about. Raises BadRequest if it is missing."""
    shapes = report.get("shapes")
    worst = shapes.get("worst") if isinstance(shapes, Mapping) else None
    if not isinstance(worst, int) or not 0 <= worst < sets:
        raise BadRequest.one(
            "not_a_report",
            "shapes.worst",
            repr(worst)[:80],
            "the number of a set of shapes",
            "write the report with `remat plan -o`",
        )
    return worst


def without_goal(request: Request) -> Request:
    """The request without budget, overhead and memory; the budget of the saved plan applies."""
    return replace(request, budget=None, max_overhead=None, fits=None)


def _saved_version(report: Mapping[str, Any]) -> ModelVersion:
    """The saved plan on its own source, accepted by the independent checker."""
    request, source = saved_report.parse_embedded(report)
    if report["plan"].get("offloaded"):
        raise BadRequest.one(
            "bad_field",
            "plan.offloaded",
            "copies to the host, which are not replayed",
            "a plan without them",
            "plan the model without offload",
        )
    formulation = formulate(source, without_goal(request))
    order = report["plan"].get("order")
    if not isinstance(order, (list, tuple)):
        raise BadRequest.one(
            "not_a_report", "plan.order", "nothing", "a list of runs", "write the report with `remat plan -o`"
        )
    chosen = parse_choices(formulation.lowered, report["plan"].get("choices", ()))
    return ModelVersion(formulation, _checked(formulation, saved_report.parse_order(formulation, order), chosen))


def replayed_version(
    report: Mapping[str, Any], saved: ModelVersion, formulation: Formulation
) -> tuple[ModelVersion, dict[str, Any]]:
    """(current version with the replayed plan, section `replay`)."""
    assert saved.plan is not None
    order, added, removed = replay_order(saved.formulation.lowered, formulation.lowered, saved.plan.order.tolist())
    why, plan = "", None
    try:
        plan = _checked(formulation, order, parse_choices(formulation.lowered, report["plan"].get("choices", ())))
    except IllegalPlan as error:
        why = str(error)
    return ModelVersion(formulation, plan), {"runs": plan is not None, "why": why, "came": added, "went": removed}


def _checked(formulation: Formulation, order: Sequence[int], choices: Sequence[int]) -> Plan:
    """Evaluate and check an order. Raises IllegalPlan."""
    check_order(apply_choices(formulation.lowered.problem, choices), formulation.goal, list(order), formulation.names())
    plan = formulation.evaluated(np.asarray(order, np.int64), "replayed", choices)
    formulation.check(plan)
    return plan


def replay_order(
    saved: LoweredGraph, current: LoweredGraph, order: Sequence[int]
) -> tuple[list[int], list[str], list[str]]:
    """(order in tasks of the current model, names of added tasks, names of removed tasks).

    A first run follows the tasks it needs; an added task follows its predecessor in the document.
    """
    named = {current.name_of_task(task): task for task in range(current.problem.tasks)}
    names = [saved.name_of_task(task) for task in range(saved.problem.tasks)]
    known = [named[names[task]] for task in order if names[task] in named]
    there, before = set(known), set(names)
    new_after: dict[int, list[int]] = {}  # task -> added tasks after it; -1: at the start
    anchor = -1
    for task in range(current.problem.tasks):
        if task in there:
            anchor = task
        elif not current.problem.optional[task]:
            new_after.setdefault(anchor, []).append(task)
    runs = _Runs(current)
    runs.add(new_after.pop(-1, ()))
    for task in known:
        runs.add([task, *new_after.pop(task, ())])
    added = [name for name in named if name not in before]
    return runs.order, added, [name for name in names if name not in named]


class _Runs:
    """A sequence in which every first run follows the tasks it needs."""

    def __init__(self, lowered: LoweredGraph):
        tasks = lowered.problem.tasks
        self.needs = edges(lowered.problem).transposed(tasks).lists()
        self.ran, self.early, self.order = [False] * tasks, set[int](), list[int]()

    def add(self, tasks: Sequence[int]) -> None:
        """Append each task; skip one whose first run was moved ahead for another task."""
        for task in tasks:
            if task in self.early:
                self.early.remove(task)
            elif self.ran[task]:
                self.order.append(task)
            else:
                self._add_first_run(task)

    def _add_first_run(self, target: int) -> None:
        """Append the first run of a task, after the missing first runs of the tasks it needs."""
        pending = [target]
        while pending:
            task = pending[-1]
            missing = [] if self.ran[task] else [need for need in self.needs[task] if not self.ran[need]]
            if missing:
                pending += reversed(missing)
                continue
            pending.pop()
            if not self.ran[task]:
                self.ran[task] = True
                self.order.append(task)
                if task != target:
                    self.early.add(task)


def _rows(saved: ModelVersion, current: ModelVersion) -> list[dict[str, Any]]:
    """One row for each figure: saved, current, and growth as a share; null if a number is missing."""
    before, after = saved.figures(), current.figures()
    rows = []
    for what, old in before.items():
        new = after[what]
        rows.append({"what": what, "was": old, "now": new, "drift": _growth(old, new)})
    return rows


def _blame(
    drifted: Sequence[str],
    over: bool,
    replay: Mapping[str, Any],
    larger_values: Mapping[str, Any],
    slower_nodes: Sequence[Any],
) -> list[str]:
    """Nodes that cause the drift, the most likely first: changed values before values that are only held longer."""
    if not replay["runs"]:
        return [*replay["came"], *replay["went"]][:MAX_BLAMED]
    found: list[str] = []
    for part in ("plan", "baseline"):
        if f"{part}.peak_bytes" in drifted or (over and part == "plan"):
            changed = [row for row in larger_values[part] if row["why"] != HELD] or larger_values[part]
            found += [row["node"] or row["value"] for row in changed]
    if any(what.endswith("seconds") for what in drifted):
        found += [row["node"] for row in slower_nodes]
    return list(dict.fromkeys(found))[:MAX_BLAMED]


def _growth(saved: float | None, current: float | None) -> float | None:
    if saved is None or current is None or (not saved and current):
        return None
    growth = current / saved - 1 if saved else 0.0
    return 0.0 if abs(growth) <= TIME_TOLERANCE else growth


def _figure_warnings(report: Mapping[str, Any], saved: ModelVersion) -> list[str]:
    """Warnings where the report's figures differ from those derived from its own source."""
    warnings = []
    for what, found in saved.figures().items():
        section, name = what.split(".")
        claimed = (report.get(section) or {}).get(name)
        if not isinstance(claimed, (int, float)) or _growth(claimed, found) != 0.0:
            warnings.append(f"{what}: the report says {claimed}, its source gives {found}; re-plan the model")
    return warnings
