"""The whole data path, top to bottom.

bytes → Graph → training Graph → Problem → order → Plan → checked → rewritten Graph → executed → Report
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from graph import sharing
from graph.collector import collector_paused
from graph.exporters.native import document
from graph.gradient_events import GradientEvent, described
from graph.ir import Graph
from graph.limits import Limits
from graph.stops import SPARE, heeding, unless_stopped
from planner import advice, checkpoints, execution, goals, lever_runs, levers, portfolio
from planner.check import check
from planner.figures import overhead
from planner.fitting import KEPT, fitted
from planner.lower import Group
from planner.plan import Order, Plan, Score
from planner.portfolio import Found
from planner.posed import question_of, smaller
from planner.question import ALIGNMENT, Question, with_more_moments, with_time_bound
from planner.realize import realize, sequence
from planner.report import Facts, assemble
from planner.request import Request
from planner.runtime import runtime_named
from planner.source import identity, read, training_graph, wanted_of

#: Stages before there can be any plan.
EMPTY = frozenset({"read", "differentiate"})


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
    seeds: Sequence[Found] = (),
) -> Outcome:
    """Plan a model. Raises BadGraph, BadRequest; an unreachable budget is a result, not an error.

    `seeds` are orders of what is planned that are legal; no worse than any of them comes out.
    A set `cancel` ends the search; the best plan so far is then finished and returned. Raises Stopped where it is
    set before there is one, unless the model is small or there are seeds: then the first plan is near.
    """
    stages = Stages(on_progress, cancel or threading.Event(), bool(seeds))
    if request.shapes:
        from planner import shapes  # it stands on this file

        with collector_paused():
            return shapes.solve(model, request, limits, stages)
    with collector_paused():
        with stages("read"):
            forward = read(model, request, limits)
        with stages("differentiate"):
            events: list[GradientEvent] = []
            source, notes = training_graph(model, forward, request, events if request.gradient_events else None)
        with stages("plan"):
            question = stages.bounded(stages.posed(source, request))
            until = stages.begun + request.search_seconds
            plan = stages.search(_with_time_for_addresses(question, request), request.planner, seeds)
            question = stages.tightened(question, plan)
            mirrored = question.judged(
                portfolio.search(question.lowered.problem, question.goal, "mirror", question.monitor()).order, "mirror"
            )
        with stages("layout"):
            if runtime_named(request.runtime).places:
                again = partial(stages.again, request.planner)
                plan, said = fitted(question, plan, request.layout, again, stages.cancel, until)
            else:
                plan, said = question.placed(plan, request.layout, stages.cancel), ()
            check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
        with stages("rewrite"):
            runs = sequence(question.lowered, plan)
            rewritten = realize(runs)
            sections = besides(question, rewritten, request, stages.cancel)
            if request.advise:
                planned = partial(_planned, model, limits, stages.cancel)
                asked = levers.Asked(model, forward, source, request, limits, planned, stages.cancel)
                sections = unless_stopped(
                    stages.cancel, lambda made: made | {"advice": advice.advise(question, asked)}, sections
                )
                said = (*said, *([] if "advice" in sections else ["stopped before there was advice on other means"]))
            if request.gradient_events:
                sections["gradients"] = described(source, events, wanted_of(request))
    with stages("execute"):
        executed = execution.prove(
            execution.Planned(question, plan, runs, rewritten), request,
            lambda batch: smaller(model, forward, request, limits, batch, question.lowered.groups), stages.cancel,
        )  # fmt: skip
        executed = unless_stopped(stages.cancel, lambda ran: lever_runs.beside(ran, model, request, limits), executed)
    facts = Facts(
        question, plan, runs, mirrored, executed, (*notes, *question.warnings, *stages.notes, *said), stages.elapsed,
        stages.stopped_by_clock, stages.cancel.is_set(), request,
    )  # fmt: skip
    documents = {"source": source, "graph": rewritten}
    with collector_paused():
        sections |= {name: document(graph) for name, graph in documents.items() if name in request.returns}
        return Outcome(assemble(facts, identity(source), sections), source, rewritten, plan)


def _with_time_for_addresses(question: Question, request: Request) -> Question:
    """The question with less time, where addresses may send the plan back and a search by the clock would take all."""
    if request.layout == "none" or not question.goal.budget_bytes or not runtime_named(request.runtime).places:
        return question
    return replace(question, goal=replace(question.goal, seconds=question.goal.seconds * (1 - KEPT)))


def _planned(model: bytes | Graph, limits: Limits | None, cancel: threading.Event, request: Request) -> levers.Planned:
    """The model planned under another request, checked; no addresses, no rewriting."""
    source, _ = training_graph(model, read(model, request, limits), request)
    question = with_time_bound(question_of(source, request), quick=True)
    plan = Stages(None, cancel).search(question, request.planner)
    check(question.lowered.problem, question.goal, plan, names=question.names())
    return levers.Planned(question, plan)


class Stages:
    """Times the stages of one solve and passes progress on."""

    def __init__(self, on_progress: Callable[[Progress], None] | None, cancel: threading.Event, is_kept: bool = False):
        """`is_kept`: there is a plan to keep before the first is found."""
        self.on_progress, self.cancel, self.is_kept = on_progress, cancel, is_kept
        self.started = self.begun = time.monotonic()  # the whole, and the stage under way
        self.elapsed: dict[str, float] = {}
        self.stopped_by_clock = False
        self.notes: list[str] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.tell(Progress(stage, time.monotonic() - self.started))
        begin = self.begun = time.monotonic()
        with heeding(self.cancel if stage in EMPTY and not self.is_kept else None, SPARE):
            yield
        self.elapsed[stage] = time.monotonic() - begin

    def tell(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    def posed(self, source: Graph, request: Request, groups: tuple[Group, ...] = ()) -> Question:
        """The question about a graph. Raises Stopped when that comes first and nothing is there to keep."""
        return question_of(source, request, groups, None if self.is_kept else self.cancel)

    def bounded(self, question: Question) -> Question:
        """The question with its quick bound, or as it is once whoever waits wants to stop."""
        return unless_stopped(self.cancel, partial(with_time_bound, quick=True), question)

    def tightened(self, question: Question, plan: Plan) -> Question:
        """The question with the bound of several moments where the plan leaves a gap, or as it is, likewise."""
        return unless_stopped(self.cancel, partial(with_more_moments, plan=plan), question)

    def search(self, question: Question, planner: str, seeds: Sequence[Found] = ()) -> Plan:
        """The best plan the planner finds in the goal's time, no worse than any of the seeds."""

        def improved(_: Order, score: Score) -> None:
            extra = overhead(score.cost, question.baseline_cost)
            least = question.bound.once_cost if score.bytes_over_budget else question.bound.cost
            floor = overhead(least, question.baseline_cost)
            peak = question.count.counted(score.peak_bytes)
            self.tell(Progress("plan", time.monotonic() - self.started, extra, peak, floor, extra - floor))

        monitor = question.monitor(improved, self.cancel)
        found = goals.search(question.lowered.problem, question.goal, planner, monitor, seeds)
        self.stopped_by_clock = monitor.stopped_by_clock
        if planner != "auto":  # there, one that cannot do anything is no news
            self.notes = monitor.notes
        return question.judged(found.order, found.planner, found.choices)

    def again(self, planner: str, question: Question, seed: Found) -> Plan:
        """What the planner makes of another question, of which nobody is told."""
        other = Stages(None, self.cancel)
        plan = other.search(question, planner, [seed])
        self.stopped_by_clock |= other.stopped_by_clock
        return plan


def besides(question: Question, rewritten: Graph, request: Request, cancel: threading.Event) -> dict[str, Any]:
    """Sections of the report that a request asks for by a field of its own."""
    sections: dict[str, Any] = {}
    if request.share_buffers:
        sections["sharing"] = sharing.described(rewritten)
    if request.advise_checkpoints:
        problem = question.lowered.problem
        given = np.flatnonzero(problem.checkpoint)
        found = checkpoints.advise(problem, question.goal, question.monitor(cancel=cancel), given)
        sections["checkpoint_advice"] = checkpoints.described(question, found)
    return sections
