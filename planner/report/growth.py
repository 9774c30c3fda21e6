"""Growth between two versions of a model: values that hold more bytes at a peak, and nodes that take longer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.formulation import metrics
from planner.formulation.formulation import Formulation
from planner.lowering.lowered_graph import LoweredGraph
from planner.problem.plan import Plan

TIME_TOLERANCE = 1e-9  # relative; seconds are sums of floats
#: Reasons why a value holds more at the peak, the most likely cause first.
GREW, NEW, HELD = "grew", "new", "held at the peak now"


@dataclass(frozen=True, eq=False, slots=True)
class ModelVersion:
    """One version of a model: its formulation, and the saved plan on it."""

    formulation: Formulation
    plan: Plan | None  # None: the order is illegal for this version

    def figures(self) -> dict[str, float | None]:
        """Peak and seconds of the baseline and of the plan; null if the plan is illegal."""
        found: dict[str, float | None] = {}
        for name, plan in (("baseline", self.formulation.baseline), ("plan", self.plan)):
            peak = None if plan is None else self.formulation.counted_peak(plan)
            seconds = None if plan is None else plan.score.cost * self.formulation.lowered.problem.tick
            found |= {f"{name}.peak_bytes": peak, f"{name}.seconds": seconds}
        return found


def holds_more(saved: ModelVersion, current: ModelVersion) -> dict[str, list[dict[str, Any]]]:
    """For both peaks: values that hold more bytes than in the saved version, changed values first."""
    found = {}
    pairs = (("baseline", saved.formulation.baseline, current.formulation.baseline), ("plan", saved.plan, current.plan))
    for name, before, after in pairs:
        if before is not None and after is not None:
            found[name] = _grown(saved.formulation, before, current.formulation, after)
    return found


def _grown(saved_formulation: Formulation, before: Plan, formulation: Formulation, after: Plan) -> list[dict[str, Any]]:
    """Rows of values that hold more bytes at the peak of `after` than at the peak of `before`."""
    held_before, held_after = _held(saved_formulation, before), _held(formulation, after)
    sizes, old_types = _sizes(saved_formulation, before), _types(saved_formulation)
    producers, types, ops = _producers(formulation.lowered.under(after.choices)), _types(formulation), _ops(formulation)
    rows = []
    for value, count in held_after.items():
        if (grown := count - held_before.get(value, 0)) > 0:
            changed = value in sizes and count != sizes[value]
            node = producers.get(value)
            rows.append(
                {
                    "value": value,
                    "node": node,
                    "op": ops.get(node or ""),
                    "was": held_before.get(value, 0),
                    "now": count,
                    "bytes": grown,
                    "type_was": old_types.get(value),
                    "type_now": types.get(value),
                    "why": NEW if value not in sizes else GREW if changed else HELD,
                }
            )
    return sorted(rows, key=lambda row: (row["why"] == HELD, -row["bytes"], row["value"]))


def _held(formulation: Formulation, plan: Plan) -> dict[str, int]:
    """Name -> bytes at the peak step, for values and for the workspace of the task."""
    rows = metrics.peak_holders(
        formulation.lowered, plan, len(plan.lifetimes.buffer), residents=not formulation.count.excluded_bytes
    )
    held = Counter[str]()
    for row in rows:
        held[row["value"]] += row["bytes"]
    if len(plan.order):
        lowered = formulation.lowered.under(plan.choices)
        task = int(plan.order[int(np.argmax(plan.step_bytes))])
        held[f"workspace of {lowered.name_of_task(task)}"] += int(lowered.problem.workspace[task])
    return dict(held)


def _sizes(formulation: Formulation, plan: Plan) -> dict[str, int]:
    """Name -> bytes, for every value and every workspace."""
    lowered = formulation.lowered.under(plan.choices)
    problem = lowered.problem
    sizes = {lowered.name_of_buffer(b): int(problem.size[b]) for b in range(problem.buffers)}
    spaces = {f"workspace of {lowered.name_of_task(t)}": int(problem.workspace[t]) for t in range(problem.tasks)}
    return sizes | spaces


def _types(formulation: Formulation) -> dict[str, str]:
    """Name of a value -> dtype and shape; without values that are only sizes."""
    return {value.name: str(value.type) for value in formulation.lowered.graph.values if value.type is not None}


def _output_types(formulation: Formulation) -> dict[str, str]:
    """Name of a node -> dtype and shape of its first output."""
    graph = formulation.lowered.graph
    first = {node.name: graph.values[node.writes[0]].type for node in graph.nodes if len(node.writes)}
    return {name: str(type) for name, type in first.items() if type is not None}


def _ops(formulation: Formulation) -> dict[str, str]:
    return {node.name: node.op for node in formulation.lowered.graph.nodes}


def _producers(lowered: LoweredGraph) -> dict[str, str]:
    """Name of a value or workspace -> name of its producing node."""
    problem = lowered.problem
    producers = {f"workspace of {lowered.name_of_task(t)}": lowered.name_of_task(t) for t in range(problem.tasks)}
    for buffer, task in enumerate(problem.producer().tolist()):
        if task >= 0:
            producers[lowered.name_of_buffer(buffer)] = lowered.name_of_task(task)
    return producers


def takes_longer(saved: ModelVersion, current: ModelVersion) -> list[dict[str, Any]]:
    """Nodes whose runs take more seconds in total than before, by increase, falling; under the plan if it is legal."""
    before, after = (_seconds(side, current.plan is not None) for side in (saved, current))
    min_seconds = TIME_TOLERANCE * sum(after.values())  # ticks round below this
    (types_before, types_after), ops = (
        (_output_types(side.formulation) for side in (saved, current)),
        _ops(current.formulation),
    )
    rows = [
        {
            "node": node,
            "op": ops.get(node),
            "was": before.get(node, 0.0),
            "now": seconds,
            "seconds": seconds - before.get(node, 0.0),
            "type_was": types_before.get(node),
            "type_now": types_after.get(node),
        }
        for node, seconds in after.items()
        if seconds - before.get(node, 0.0) > min_seconds
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def _seconds(side: ModelVersion, planned: bool) -> dict[str, float]:
    """Node -> seconds of all its runs."""
    plan = side.plan if planned and side.plan is not None else side.formulation.baseline
    lowered = side.formulation.lowered.under(plan.choices)
    runs = np.bincount(plan.order, minlength=lowered.problem.tasks)
    ticks = (runs * lowered.problem.cost).tolist()
    return {lowered.name_of_task(task): count * lowered.problem.tick for task, count in enumerate(ticks)}
