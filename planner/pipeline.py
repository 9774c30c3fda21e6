"""The whole data path, top to bottom.

bytes → Graph → training Graph → Problem → order → Plan → checked → rewritten Graph → executed → Report
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graph.exporters.native import content_hash, document
from graph.training import training_step

from graph.cost import Device, device_of
from graph.importers import importer_of, load
from graph.ir import Graph, Phase
from graph.limits import Limits, Shapes
from planner import execution, portfolio
from planner.check import check
from planner.errors import BadRequest
from planner.figures import overhead
from planner.lower import lower
from planner.plan import Order, Plan, Score
from planner.question import ALIGNMENT, Question, ask
from planner.realize import realize, sequence
from planner.report import Facts, assemble
from planner.request import Request
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
    with stages("read"):
        forward = read(model, request, limits)
    with stages("differentiate"):
        source, notes = training_graph(model, forward, request)
    with stages("plan"):
        question = question_of(source, request)
        plan = stages.search(question, request.planner)
        mirrored = question.judged(
            portfolio.search(question.lowered.problem, question.goal, "mirror", question.monitor()).order, "mirror"
        )
    with stages("layout"):
        plan = question.placed(plan, request.layout)
        check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
    with stages("rewrite"):
        runs = sequence(question.lowered, plan)
        rewritten = realize(question.lowered, runs)
    with stages("execute"):
        executed = execution.prove(
            execution.Planned(question, plan, runs, rewritten), request,
            lambda batch: smaller(model, forward, request, limits, batch), stages.cancel,
        )  # fmt: skip
    facts = Facts(
        question, plan, runs, mirrored, executed, tuple(notes) + question.warnings, stages.elapsed,
        stages.stopped_by_clock, stages.cancel.is_set(), request,
    )  # fmt: skip
    documents = {"source": source, "graph": rewritten}
    sections = {name: document(graph) for name, graph in documents.items() if name in request.returns}
    return Outcome(assemble(facts, _described(source), sections), source, rewritten, plan)


class Stages:
    """Times the stages of one solve and passes progress on."""

    def __init__(self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event):
        self.on_progress, self.cancel = on_progress, cancel
        self.started = time.monotonic()
        self.elapsed: dict[str, float] = {}
        self.stopped_by_clock = False

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
            floor = overhead(question.bound.cost, question.baseline_cost)
            peak = question.count.counted(score.peak_bytes)
            self.tell(Progress("plan", time.monotonic() - self.started, extra, peak, floor, extra - floor))

        monitor = question.monitor(improved, self.cancel)
        found = portfolio.search(question.lowered.problem, question.goal, planner, monitor)
        self.stopped_by_clock = monitor.stopped_by_clock
        return question.judged(found.order, found.planner)


def read(model: bytes | Graph, request: Request, limits: Limits | None = None) -> Graph:
    """The model under the request's shapes."""
    if isinstance(model, Graph):
        return model
    return load(model, limits, Shapes(request.inputs, request.batch, request.dims))


def training_graph(model: bytes | Graph, forward: Graph, request: Request) -> tuple[Graph, list[str]]:
    """What is planned, the graph as it stands or its training step, and what was done to get there."""
    wanted = request.differentiate
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
        return forward, []
    options = dict(wanted) if isinstance(wanted, Mapping) else {}
    return training_step(forward, loss=request.loss, recipe=request.recipe, **options)


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


def question_of(source: Graph, request: Request) -> Question:
    """The columns of the graph, and the goal in the planner's terms."""
    device = _device(request.device, "device")
    lowered = lower(
        source,
        device,
        runtime_named(request.runtime),
        checkpoints=_ids(source, request.checkpoints, "checkpoints"),
        keep=_ids(source, request.keep, "keep"),
        recompute=_ids(source, request.recompute, "recompute"),
    )
    fits = _device(request.fits, "fits").memory_bytes if isinstance(request.fits, str) else request.fits
    return ask(lowered, request, source.order_is_given, device.memory_bytes, fits)


def smaller(model: bytes | Graph, forward: Graph, request: Request, limits: Limits | None, batch: int) -> Graph | None:
    """The planned graph of the same model with its batch cut down; None for a model that has no batch."""
    leading = {forward.values[v].name: forward.values[v].type for v in forward.inputs}
    inputs = {
        name: (batch, *type.shape[1:]) for name, type in leading.items() if type is not None and type.shape
    }  # fmt: skip
    if isinstance(model, Graph) or not inputs:
        return None
    cut = load(model, limits, Shapes({**request.inputs, **inputs}, None, request.dims))
    return training_graph(model, cut, request)[0]


def _ids(graph: Graph, names: tuple[str, ...], field: str) -> list[int]:
    number = {value.name: v for v, value in enumerate(graph.values)} if names else {}
    if unknown := [name for name in names if name not in number]:
        raise BadRequest.one(
            "unknown_value", field, ", ".join(unknown[:5]), "names of values of the planned graph",
            "see `remat info` for the names",
        )  # fmt: skip
    return [number[name] for name in names]
