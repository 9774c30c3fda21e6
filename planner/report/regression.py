"""How far a model has come from the one a plan was made for: peak and time, as it stands and with that plan.

    report ──source──▶ columns then ──order──▶ plan then ─╮
       ╰──request──╮                      ╰──by name──╮   ├──▶ drift, and who holds more at the peak
                 model ──▶ columns now ──order now────┴───╯

Nothing is searched: the plan's order is replayed on the model as it is now. Runs of nodes that went are left out, nodes
that came run once, right after the node they stand behind. Both sides are measured by the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.errors import BadRequest, IllegalPlan
from planner.formulation import metrics as figures
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.metrics import parse_choices
from planner.formulation.training_graph import load_model, model_identity, training_graph
from planner.lowering.lower import LoweredGraph
from planner.problem.plan import Plan
from planner.problem.topological import edges
from planner.report import saved_report
from planner.request.plan_request import Request, parse_request
from planner.verify.checker import apply_choices as columns_under
from planner.verify.checker import check, check_order

FORMAT = "remat-check/1"
MAX_BLAMED = 10
TIME_TOLERANCE = 1e-9  # relative; seconds are sums of floats
#: Why a value is among those that hold more at the peak, the likeliest culprit first.
GREW, NEW, HELD = "grew", "new", "held at the peak now"


@dataclass(frozen=True, eq=False, slots=True)
class ModelVersion:
    """A model at one time: its question, the plan's figures on it, and how often each task runs."""

    question: Formulation
    plan: Plan | None  # None: the order cannot run on it

    def figures(self) -> dict[str, float | None]:
        """Peak and time of the step as it stands, and with the plan; null where it cannot run."""
        found: dict[str, float | None] = {}
        for name, plan in (("baseline", self.question.baseline), ("plan", self.plan)):
            peak = None if plan is None else self.question.count.counted(plan.score.peak_bytes)
            seconds = None if plan is None else plan.score.cost * self.question.lowered.problem.tick
            found |= {f"{name}.peak_bytes": peak, f"{name}.seconds": seconds}
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Drift:
    """The document `remat-check/1`, and both sides of it."""

    document: dict[str, Any]
    before: ModelVersion
    after: ModelVersion


def drift(report: Mapping[str, Any], model: bytes, max_drift: float) -> Drift:
    """What became of a saved plan's figures on the model, read with the plan's own request.

    Raises BadRequest for a report without its source or whose request no longer fits the model, IllegalPlan for
    one whose order cannot run on its own source, BadGraph for a model that cannot be read.
    """
    was = _saved_version(report)
    request = parse_request(report["request"])
    if request.shapes:
        request = request.under(request.shapes[_worst(report, len(request.shapes))])
    source, notes = training_graph(model, load_model(model, request), request)
    question = formulate(source, _without_goal(request))
    now, replay = _current_version(report, was, question)
    budget = report["plan"].get("budget_bytes")
    rows = _rows(was, now)
    peak = now.figures()["plan.peak_bytes"]
    over = bool(budget) and peak is not None and peak > budget
    drifted = [row["what"] for row in rows if row["drift"] is None or row["drift"] > max_drift]
    holds, takes = _holds_more(was, now), _takes_longer(was, now)
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
        "blame": _blame(drifted, over, replay, holds, takes),
        "holds_more": holds,
        "takes_longer": takes,
        "warnings": [*notes, *question.warnings, *_measured_otherwise(report, was)],
    }
    return Drift(document, was, now)


def _worst(report: Mapping[str, Any], sets: int) -> int:
    """The set of shapes a report is about. Raises BadRequest where it does not say."""
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


def _without_goal(request: Request) -> Request:
    """No budget is to be worked out anew: the plan's own is what counts."""
    return replace(request, budget=None, max_overhead=None, fits=None)


def _saved_version(report: Mapping[str, Any]) -> ModelVersion:
    """The plan on the source it was made for, accepted by the independent checker."""
    request, source = saved_report.parse_embedded(report)
    question = formulate(source, _without_goal(request))
    order = report["plan"].get("order")
    if not isinstance(order, (list, tuple)):
        raise BadRequest.one(
            "not_a_report", "plan.order", "nothing", "a list of runs", "write the report with `remat plan -o`"
        )
    chosen = parse_choices(question.lowered, report["plan"].get("choices", ()))
    return ModelVersion(question, _checked(question, saved_report.parse_order(question, order), chosen))


def _current_version(
    report: Mapping[str, Any], was: ModelVersion, question: Formulation
) -> tuple[ModelVersion, dict[str, Any]]:
    """The plan's order on the model as it is now, and what was done to get there."""
    assert was.plan is not None
    order, came, went = replay_order(was.question.lowered, question.lowered, was.plan.order.tolist())
    why, plan = "", None
    try:
        plan = _checked(question, order, parse_choices(question.lowered, report["plan"].get("choices", ())))
    except IllegalPlan as error:
        why = str(error)
    return ModelVersion(question, plan), {"runs": plan is not None, "why": why, "came": came, "went": went}


def _checked(question: Formulation, order: Sequence[int], choices: Sequence[int]) -> Plan:
    """The order as a plan. Raises IllegalPlan where it cannot run."""
    check_order(columns_under(question.lowered.problem, choices), question.goal, list(order), question.names())
    plan = question.evaluated(np.asarray(order, np.int64), "replayed", choices)
    check(question.lowered.problem, question.goal, plan, names=question.names())
    return plan


def replay_order(was: LoweredGraph, now: LoweredGraph, order: Sequence[int]) -> tuple[list[int], list[str], list[str]]:
    """The order in tasks of the model now, names of tasks that came, and of those that went.

    A first run waits for what it needs; a task that came stands behind the one the document has it behind.
    """
    named = {now.name_of_task(task): task for task in range(now.problem.tasks)}
    names = [was.name_of_task(task) for task in range(was.problem.tasks)]
    known = [named[names[task]] for task in order if names[task] in named]
    there, before = set(known), set(names)
    behind: dict[int, list[int]] = {}  # -1: those that stand first
    anchor = -1
    for task in range(now.problem.tasks):
        if task in there:
            anchor = task
        elif not now.problem.optional[task]:
            behind.setdefault(anchor, []).append(task)
    runs = _Runs(now)
    runs.add(behind.pop(-1, ()))
    for task in known:
        runs.add([task, *behind.pop(task, ())])
    came = [name for name in named if name not in before]
    return runs.order, came, [name for name in names if name not in named]


class _Runs:
    """A sequence in which first runs follow what they need."""

    def __init__(self, lowered: LoweredGraph):
        tasks = lowered.problem.tasks
        self.needs = edges(lowered.problem).transposed(tasks).lists()
        self.ran, self.early, self.order = [False] * tasks, set[int](), list[int]()

    def add(self, tasks: Sequence[int]) -> None:
        """Run each; one that something else already waited for has had this run."""
        for task in tasks:
            if task in self.early:
                self.early.remove(task)
            elif self.ran[task]:
                self.order.append(task)
            else:
                self._first(task)

    def _first(self, wanted: int) -> None:
        pending = [wanted]
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
                if task != wanted:
                    self.early.add(task)


def _rows(was: ModelVersion, now: ModelVersion) -> list[dict[str, Any]]:
    """A row a figure: before, now, and the growth as a share; null where there is no such number."""
    before, after = was.figures(), now.figures()
    rows = []
    for what, old in before.items():
        new = after[what]
        rows.append({"what": what, "was": old, "now": new, "drift": _growth(old, new)})
    return rows


def _blame(
    drifted: Sequence[str], over: bool, replay: Mapping[str, Any], holds: Mapping[str, Any], takes: Sequence[Any]
) -> list[str]:
    """The nodes behind what drifted, the likeliest first: of values that changed before those that are only held."""
    if not replay["runs"]:
        return [*replay["came"], *replay["went"]][:MAX_BLAMED]
    found: list[str] = []
    for part in ("plan", "baseline"):
        if f"{part}.peak_bytes" in drifted or (over and part == "plan"):
            changed = [row for row in holds[part] if row["why"] != HELD] or holds[part]
            found += [row["node"] or row["value"] for row in changed]
    if any(what.endswith("seconds") for what in drifted):
        found += [row["node"] for row in takes]
    return list(dict.fromkeys(found))[:MAX_BLAMED]


def _growth(was: float | None, now: float | None) -> float | None:
    if was is None or now is None or (not was and now):
        return None
    growth = now / was - 1 if was else 0.0
    return 0.0 if abs(growth) <= TIME_TOLERANCE else growth


def _holds_more(was: ModelVersion, now: ModelVersion) -> dict[str, list[dict[str, Any]]]:
    """Of both peaks, the values that hold more bytes there than they did, those that changed first."""
    found = {}
    pairs = (("baseline", was.question.baseline, now.question.baseline), ("plan", was.plan, now.plan))
    for name, before, after in pairs:
        if before is not None and after is not None:
            found[name] = _grown(was.question, before, now.question, after)
    return found


def _grown(then: Formulation, before: Plan, question: Formulation, after: Plan) -> list[dict[str, Any]]:
    held, holds = _held(then, before), _held(question, after)
    sizes = _sizes(then, before)
    makers = _makers(question.lowered.under(after.choices))
    rows = []
    for value, count in holds.items():
        if (grown := count - held.get(value, 0)) > 0:
            changed = value in sizes and count != sizes[value]
            why = NEW if value not in sizes else GREW if changed else HELD
            rows.append(
                {
                    "value": value,
                    "node": makers.get(value),
                    "was": held.get(value, 0),
                    "now": count,
                    "bytes": grown,
                    "why": why,
                }
            )
    return sorted(rows, key=lambda row: (row["why"] == HELD, -row["bytes"], row["value"]))


def _held(question: Formulation, plan: Plan) -> dict[str, int]:
    """Bytes at the peak step by the name of who holds them; a node's workspace stands under its own name."""
    rows = figures.peak_holders(
        question.lowered, plan, len(plan.lifetimes.buffer), residents=not question.count.excluded_bytes
    )
    held = Counter[str]()
    for row in rows:
        held[row["value"]] += row["bytes"]
    if len(plan.order):
        lowered = question.lowered.under(plan.choices)
        task = int(plan.order[int(np.argmax(plan.step_bytes))])
        held[f"workspace of {lowered.name_of_task(task)}"] += int(lowered.problem.workspace[task])
    return dict(held)


def _sizes(question: Formulation, plan: Plan) -> dict[str, int]:
    """Bytes of every value there is, and of every workspace."""
    lowered = question.lowered.under(plan.choices)
    problem = lowered.problem
    sizes = {lowered.name_of_buffer(b): int(problem.size[b]) for b in range(problem.buffers)}
    spaces = {f"workspace of {lowered.name_of_task(t)}": int(problem.workspace[t]) for t in range(problem.tasks)}
    return sizes | spaces


def _makers(lowered: LoweredGraph) -> dict[str, str]:
    """Name of a value -> name of the node that makes it."""
    problem = lowered.problem
    makers = {f"workspace of {lowered.name_of_task(t)}": lowered.name_of_task(t) for t in range(problem.tasks)}
    for buffer, task in enumerate(problem.producer().tolist()):
        if task >= 0:
            makers[lowered.name_of_buffer(buffer)] = lowered.name_of_task(task)
    return makers


def _takes_longer(was: ModelVersion, now: ModelVersion) -> list[dict[str, Any]]:
    """The nodes whose runs take more time together than they did, the most first; with the plan where it runs."""
    before, after = (_seconds(side, now.plan is not None) for side in (was, now))
    least = TIME_TOLERANCE * sum(after.values())  # of which ticks are a small part
    rows = [
        {"node": node, "was": before.get(node, 0.0), "now": seconds, "seconds": seconds - before.get(node, 0.0)}
        for node, seconds in after.items()
        if seconds - before.get(node, 0.0) > least
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def _seconds(side: ModelVersion, planned: bool) -> dict[str, float]:
    """Seconds of all runs of each node."""
    plan = side.plan if planned and side.plan is not None else side.question.baseline
    lowered = side.question.lowered.under(plan.choices)
    runs = np.bincount(plan.order, minlength=lowered.problem.tasks)
    ticks = (runs * lowered.problem.cost).tolist()
    return {lowered.name_of_task(task): count * lowered.problem.tick for task, count in enumerate(ticks)}


def _measured_otherwise(report: Mapping[str, Any], was: ModelVersion) -> list[str]:
    """A warning where the report says other figures of its own plan than are measured now."""
    said = []
    for what, found in was.figures().items():
        section, name = what.split(".")
        claimed = (report.get(section) or {}).get(name)
        if not isinstance(claimed, (int, float)) or _growth(claimed, found) != 0.0:
            said.append(f"{what}: the report says {claimed}, its source gives {found}; plan the model again")
    return said
