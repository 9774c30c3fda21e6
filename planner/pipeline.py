"""The whole data path, top to bottom.

bytes → Graph → training Graph → Problem → order → Plan → checked → rewritten Graph → executed → Report
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph import sharing
from graph.collector import collector_paused
from graph.cost import Device, device_of
from graph.exporters.native import content_hash, document
from graph.gradient_events import GradientEvent, described
from graph.importers import importer_of, load
from graph.ir import Graph, Phase
from graph.limits import Limits, Shapes
from graph.recurrent import as_preferred, expanded, in_parts, names_in_steps, recomputed_where_named
from graph.training import check_fields, training_step
from planner import checkpoints, execution, portfolio
from planner.check import check
from planner.errors import BadRequest, IllegalPlan
from planner.figures import chosen_of, holders, overhead
from planner.lower import Group, lower
from planner.lower_bodies import with_body_plans
from planner.placement import with_layout
from planner.plan import Order, Plan, Score
from planner.question import ALIGNMENT, Question, ask, with_time_bound
from planner.realize import realize, sequence
from planner.report import Facts, assemble, binding_node, explained, measured
from planner.request import Request, parse_request
from planner.runtime import runtime_named


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a solve has come, for whoever waits."""

    stage: str  # "read", "differentiate", "plan", "layout", "rewrite" or "execute"
    seconds: float
    incumbent_overhead: float | None = None
    incumbent_peak_bytes: int | None = None
    bound_overhead: float | None = None
    gap: float | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """What a solve gives back. `graph` is the rewritten graph, `source` what was planned."""

    report: dict[str, Any]
    source: Graph
    graph: Graph
    plan: Plan

    @property
    def exit_code(self) -> int:
        """0 done, 1 over budget, 3 stopped, 4 our own fault."""
        if self.report["executed"]["status"] == "different":
            return 4
        if self.report["plan"]["stopped"]:
            return 3
        return 1 if self.report["plan"]["status"] == "over_budget" else 0


def solve(
    model: bytes | Graph,
    request: Request,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
) -> Outcome:
    """Plan a model. Raises BadGraph, BadRequest; an unreachable budget is a result, not an error.

    A set `cancel` ends the search; the best plan so far is then finished and returned.
    """
    stages = Stages(on_progress, cancel or threading.Event())
    with collector_paused():
        with stages("read"):
            forward = read(model, request, limits)
        with stages("differentiate"):
            events: list[GradientEvent] = []
            source, notes = training_graph(model, forward, request, events if request.gradient_events else None)
        with stages("plan"):
            question = with_time_bound(question_of(source, request))
            plan = stages.search(question, request.planner)
            mirrored = question.judged(
                portfolio.search(question.lowered.problem, question.goal, "mirror", question.monitor()).order, "mirror"
            )
        with stages("layout"):
            plan = question.placed(plan, request.layout)
            check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
        with stages("rewrite"):
            runs = sequence(question.lowered, plan)
            rewritten = realize(runs)
            sections = besides(question, rewritten, request, stages.cancel)
            if request.gradient_events:
                sections["gradients"] = described(source, events, wanted_of(request))
    with stages("execute"):
        executed = execution.prove(
            execution.Planned(question, plan, runs, rewritten), request,
            lambda batch: smaller(model, forward, request, limits, batch, question.lowered.groups), stages.cancel,
        )  # fmt: skip
    facts = Facts(
        question, plan, runs, mirrored, executed, (*notes, *question.warnings, *stages.notes), stages.elapsed,
        stages.stopped_by_clock, stages.cancel.is_set(), request,
    )  # fmt: skip
    documents = {"source": source, "graph": rewritten}
    sections |= {name: document(graph) for name, graph in documents.items() if name in request.returns}
    return Outcome(assemble(facts, _described(source), sections), source, rewritten, plan)


class Stages:
    """Times the stages of one solve and passes progress on."""

    def __init__(self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event):
        self.on_progress, self.cancel = on_progress, cancel
        self.started = time.monotonic()
        self.elapsed: dict[str, float] = {}
        self.stopped_by_clock = False
        self.notes: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.tell(Progress(stage, time.monotonic() - self.started))
        begin = time.monotonic()
        yield
        self.elapsed[stage] = time.monotonic() - begin

    def tell(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def search(self, question: Question, planner: str) -> Plan:
        """The best plan the planner finds in the goal's time."""

        def improved(_: Order, score: Score) -> None:
            extra = overhead(score.cost, question.baseline_cost)
            least = question.bound.once_cost if score.bytes_over_budget else question.bound.cost
            floor = overhead(least, question.baseline_cost)
            peak = question.count.counted(score.peak_bytes)
            self.tell(Progress("plan", time.monotonic() - self.started, extra, peak, floor, extra - floor))

        monitor = question.monitor(improved, self.cancel)
        found = portfolio.search(question.lowered.problem, question.goal, planner, monitor)
        self.stopped_by_clock = monitor.stopped_by_clock
        if planner != "auto":  # there, one that cannot do anything is no news
            self.notes = monitor.notes
        return question.judged(found.order, found.planner, found.choices)


def read(model: bytes | Graph, request: Request, limits: Limits | None = None) -> Graph:
    """The model under the request's shapes."""
    if isinstance(model, Graph):
        return model
    return load(model, limits, Shapes(request.inputs, request.batch, request.dims))


def training_graph(
    model: bytes | Graph, forward: Graph, request: Request, events: list[GradientEvent] | None = None
) -> tuple[Graph, list[str]]:
    """What is planned, the graph as it stands or its training step, and what was done to get there.

    `events` is filled with how its gradients were made.
    """
    wanted = request.differentiate
    if request.planner == "recurrent":
        forward = expanded(forward)
    if wanted is None:
        has_backward = any(node.phase is not Phase.FORWARD for node in forward.nodes)
        framework_file = isinstance(model, bytes) and importer_of(model) != "native"
        wanted = request.loss is not None or (framework_file and not has_backward)
    if wanted is False:
        for name in ("recipe", "loss"):
            if getattr(request, name) is not None:
                raise BadRequest.one(
                    "not_differentiated", name, f"a {name} for a graph that is not differentiated",
                    "a forward graph to differentiate", f"leave the {name} out, or ask for differentiation",
                )  # fmt: skip
        return over_time(forward, request)
    options = dict(wanted) if isinstance(wanted, Mapping) else {}
    check_fields(options)
    callbacks = [] if events is None else [events.append]
    graph, notes = training_step(forward, loss=request.loss, recipe=request.recipe, callbacks=callbacks, **options)
    graph, cut = over_time(graph, request)
    return graph, [*notes, *cut]


def over_time(graph: Graph, request: Request) -> tuple[Graph, list[str]]:
    """The graph with recurrent nets making again what the request lists, and for `recurrent` cut into parts."""
    if request.recompute:
        graph = recomputed_where_named(graph, request.recompute)
    if request.planner != "recurrent":
        return graph, []
    parts = in_parts(as_preferred(graph))
    scans, more = (sum(node.op == "Scan" for node in each.nodes) for each in (graph, parts))
    if more == scans:
        return parts, ["recurrent: no net over time can be cut into parts, so the graph is planned as it is"]
    return parts, ["recurrent: figures, the baseline's too, are those of nets cut into parts along time"]


def wanted_of(request: Request) -> list[str] | None:
    """What the request differentiates by; None: parameters."""
    wanted = request.differentiate
    names = wanted.get("with_respect_to") if isinstance(wanted, Mapping) else None
    return None if names is None else list(names)


def _described(graph: Graph) -> dict[str, Any]:
    """What a report says of the graph that was planned."""
    return {
        "name": graph.name, "hash": content_hash(graph), "nodes": len(graph.nodes), "values": len(graph.values),
    }  # fmt: skip


def _device(given: str | Mapping[str, Any], field: str) -> Device:
    try:
        return device_of(given)
    except ValueError as error:
        raise BadRequest.one("bad_device", field, str(error), "a device", "see `remat devices`") from None


def question_of(source: Graph, request: Request, groups: tuple[Group, ...] = ()) -> Question:
    """The columns of the graph, and the goal in the planner's terms; `groups` are body plans that are known."""
    device = _device(request.device, "device")
    known, unknown = _checkpoints(source, request)
    runtime = runtime_named(request.runtime)
    lowered = lower(
        source,
        device,
        runtime,
        checkpoints=_ids(source, known, "checkpoints"),
        keep=_ids(source, request.keep, "keep"),
        recompute=_ids(source, _outside_steps(source, request.recompute), "recompute"),
    )
    fits = _device(request.fits, "fits").memory_bytes if isinstance(request.fits, str) else request.fits
    if request.planner != "recurrent":
        lowered = with_body_plans(lowered, device, runtime, groups)
    question = ask(lowered, request, source.order_is_given, device.memory_bytes, fits)
    if unknown:
        note = f"checkpoints the graph does not have are left out: {', '.join(unknown[:5])}"
        question = replace(question, warnings=(*question.warnings, note))
    return question


def _outside_steps(source: Graph, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that are not inside the step of a recurrent net, which follows them by its body."""
    inside = names_in_steps(source) if names else set()
    there = {value.name for value in source.values} if inside else set()
    return tuple(name for name in names if name not in inside or name in there)


def _checkpoints(source: Graph, request: Request) -> tuple[tuple[str, ...], list[str]]:
    """The checkpoints to keep, and those asked for that the graph does not have, where that is no error.

    Where they are asked about and none are named, they are those the document lists.
    """
    names = request.checkpoints
    if not names and (request.planner == "segments" or request.advise_checkpoints):
        listed = source.annotations.get("checkpoints", ())
        names = tuple(str(name) for name in listed) if isinstance(listed, list | tuple) else ()
    elif request.unknown_checkpoints == "error":
        return names, []
    there = {value.name for value in source.values} if names else set()
    return tuple(name for name in names if name in there), [name for name in names if name not in there]


def besides(question: Question, rewritten: Graph, request: Request, cancel: threading.Event) -> dict[str, Any]:
    """Sections of the report that a request asks for by a field of its own."""
    sections: dict[str, Any] = {}
    if request.share_buffers:
        sections["sharing"] = sharing.described(rewritten)
    if request.advise_checkpoints:
        problem = question.lowered.problem
        given = np.flatnonzero(problem.checkpoint)
        advice = checkpoints.advise(problem, question.goal, question.monitor(cancel=cancel), given)
        sections["checkpoint_advice"] = checkpoints.described(question, advice)
    return sections


def smaller(
    model: bytes | Graph, forward: Graph, request: Request, limits: Limits | None, batch: int,
    groups: tuple[Group, ...] = (),
) -> Question | None:  # fmt: skip
    """The same question about the model with its batch cut down, its bodies planned as `groups` say where they fit.

    None for a model that has no batch.
    """
    types = {forward.values[v].name: forward.values[v].type for v in forward.inputs}
    inputs = {name: (batch, *type.shape[1:]) for name, type in types.items() if type is not None and type.shape}
    if isinstance(model, Graph) or not inputs:
        return None
    cut = load(model, limits, Shapes({**request.inputs, **inputs}, None, request.dims))
    return question_of(training_graph(model, cut, request)[0], replace(request, budget=None, fits=None), groups)


def _ids(graph: Graph, names: tuple[str, ...], field: str) -> list[int]:
    number = {value.name: v for v, value in enumerate(graph.values)} if names else {}
    if unknown := [name for name in names if name not in number]:
        raise BadRequest.one(
            "unknown_value", field, ", ".join(unknown[:5]), "names of values of the planned graph",
            "see `remat info` for the names",
        )  # fmt: skip
    return [number[name] for name in names]


def verify(document: Mapping[str, Any]) -> dict[str, Any]:
    """What an independent check of a finished report finds; the report must embed its source.

    Everything is derived again from source, request and order: columns, lifetimes, bytes, seconds,
    layout. Raises BadRequest for a report that cannot be checked, IllegalPlan for one that is wrong.
    """
    request, source = _embedded(document)
    question = question_of(source, request)
    claimed = document["plan"]
    order = np.asarray(_tasks(question, claimed["order"]), np.int64)
    plan = question.judged(order, str(claimed["planner"]), chosen_of(question.lowered, claimed.get("choices", ())))
    runs = sequence(question.lowered, plan)
    if [list(run) for run in runs.runs(question.lowered)] != [list(run) for run in claimed["order"]]:
        raise IllegalPlan("plan.order: views or run numbers stand where no run shows them; plan the graph again")
    if "layout" in document:
        plan = with_layout(question, plan, runs, document["layout"], claimed["arena_bytes"])
    check(question.lowered.problem, question.goal, plan, ALIGNMENT if plan.offsets is not None else 1, question.names())
    found = {
        "peak_bytes": question.count.counted(plan.score.peak_bytes),
        "seconds": plan.score.cost * question.lowered.problem.tick,
        "overhead": overhead(plan.score.cost, question.baseline_cost),
    }
    for name, value in found.items():
        if not math.isclose(claimed[name], value, rel_tol=1e-9, abs_tol=1e-12):
            raise IllegalPlan(f"plan.{name}: the report says {claimed[name]}, the order gives {value}")
    steps = (runs.step_bytes + question.count.counted(0)).tolist()
    if "timeline" in document and document["timeline"]["step_bytes"] != steps:
        raise IllegalPlan("timeline.step_bytes: differs from what the order makes live; plan the graph again")
    return {"valid": True, **found, "steps": len(runs.nodes), "layout": "layout" in document}


def _embedded(document: Mapping[str, Any]) -> tuple[Request, Graph]:
    """The request a report answers, without what only shaped its source, and that source."""
    for name in ("request", "plan", "source"):
        if not isinstance(document.get(name), Mapping):
            raise BadRequest.one(
                "not_a_report", name, "nothing", f"a report with its {name}",
                'write it with `remat plan -o`, or ask for {"return": ["plan", "source"]}',
            )  # fmt: skip
    used = {"inputs", "batch", "dims", "loss", "recipe", "differentiate"}
    fields = {name: given for name, given in document["request"].items() if name not in used}
    return parse_request(fields), load(json.dumps(document["source"]).encode())


def _tasks(question: Question, order: Sequence[Any]) -> list[int]:
    """Task numbers of a report's order; entries that are views have none."""
    lowered = question.lowered
    number = {node.name: n for n, node in enumerate(lowered.graph.nodes)}
    tasks = []
    for place, entry in enumerate(order):
        if not isinstance(entry, (list, tuple)) or len(entry) != 2 or entry[0] not in number:
            raise IllegalPlan(f"plan.order[{place}]: {entry!r} is no run of a node of the source")
        if lowered.node_task[number[entry[0]]] >= 0:
            tasks.append(lowered.node_task[number[entry[0]]])
    return tasks


def info(model: bytes | Graph, request: Request, limits: Limits | None = None) -> dict[str, Any]:
    """What a model is before anything is planned: sizes by role, its peak and who holds it."""
    forward = read(model, request, limits)
    source, notes = training_graph(model, forward, request)
    question = question_of(source, request)
    by_role: dict[str, int] = {}
    for v, value in enumerate(source.values):
        if question.lowered.roots[v] == v:
            by_role[value.role] = by_role.get(value.role, 0) + value.nbytes
    phases = {phase.name.lower(): sum(node.phase is phase for node in source.nodes) for phase in Phase}
    return {
        "model": _described(source),
        "forward_nodes": len(forward.nodes),
        "nodes_by_phase": phases,
        "ops": dict(Counter(node.op for node in source.nodes).most_common()),
        "bytes_by_role": by_role,
        "inputs": {source.values[v].name: str(source.values[v].type) for v in source.inputs},
        "outputs": [source.values[v].name for v in source.outputs],
        "baseline": measured(question, question.baseline),
        "holders": holders(question.lowered, question.baseline),
        "smallest_possible_bytes": question.count.counted(question.bound.peak_bytes),
        "binding_node": binding_node(question),
        "warnings": [*notes, *question.warnings],
    }


def explain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Why a saved plan is as it is: what each repeat frees and costs, and who holds the peak."""
    request, source = _embedded(document)
    question = question_of(source, request)
    order = np.asarray(_tasks(question, document["plan"]["order"]), np.int64)
    claimed = document["plan"]
    choices = chosen_of(question.lowered, claimed.get("choices", ()))
    return explained(question, question.judged(order, str(claimed["planner"]), choices))
