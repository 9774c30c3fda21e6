"""From a model to a report: the whole data path.

load → training step → formulate → bound → search → place → check → realize → execute → report
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from graph.autodiff.gradients.events import GradientEvent
from graph.cancellation import unless_stopped
from graph.formats.native.writer import document
from graph.gc_pause import collector_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.advice import technique_execution
from planner.formulation import arena_repair, execution_check
from planner.formulation.formulate import smaller
from planner.formulation.formulation import ALIGNMENT
from planner.formulation.training_graph import identity, read, training_graph
from planner.lowering.realize import realize, sequence
from planner.pipeline import multi_shape
from planner.pipeline.progress import Outcome, Progress, Stages
from planner.pipeline.sections import Solved, sections_of
from planner.report.report import Facts, assemble
from planner.request.plan_request import Request
from planner.search.portfolio import Found
from planner.verify.checker import check


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

    `seeds` are legal orders of the planned graph; the result is no worse than any of them. A set `cancel` ends the
    search; the best plan so far is then finished and returned. Raises Stopped where it is set before there is one,
    unless the model is small or there are seeds: then the first plan is near.
    """
    stages = Stages(on_progress, cancel or threading.Event(), bool(seeds))
    if request.shapes:
        return multi_shape.solve(model, request, limits, stages)
    return _solve(model, request, limits, stages, seeds)


def _solve(
    model: bytes | Graph, request: Request, limits: Limits | None, stages: Stages, seeds: Sequence[Found]
) -> Outcome:
    """The data path for one set of shapes."""
    events: list[GradientEvent] = []
    with stages("read"):
        forward = read(model, request, limits)
    with stages("differentiate"):
        source, notes = training_graph(model, forward, request, events if request.gradient_events else None)
    with stages("plan"):
        question = stages.bounded(stages.posed(source, request))
        timed = arena_repair.with_time_for_addresses(question, request)
        plan = stages.search(timed, request.planner, seeds)
        question = stages.tightened(question, plan)
        mirrored = stages.mirrored(question)
    with stages("layout"):
        plan, layout_notes = stages.placed(question, plan, request)
        check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
    with stages("rewrite"):
        runs = sequence(question.lowered, plan)
        rewritten = realize(runs)
        solved = Solved(model, forward, source, rewritten, question, request, limits, events)
        sections, section_notes = sections_of(solved, stages.cancel)
    with stages("execute"):
        cut = partial(smaller, model, forward, request, limits, groups=question.lowered.groups)
        executed = execution_check.prove(
            execution_check.Planned(question, plan, runs, rewritten), request, cut, stages.cancel
        )
        executed = unless_stopped(
            stages.cancel, lambda ran: technique_execution.beside(ran, model, request, limits), executed
        )
    warnings = (*notes, *question.warnings, *stages.notes, *layout_notes, *section_notes)
    facts = Facts(
        question,
        plan,
        runs,
        mirrored,
        executed,
        warnings,
        stages.elapsed,
        stages.stopped_by_clock,
        stages.cancel.is_set(),
        request,
    )
    with collector_paused():
        documents = {"source": source, "graph": rewritten}
        sections |= {name: document(graph) for name, graph in documents.items() if name in request.returns}
        return Outcome(assemble(facts, identity(source), sections), source, rewritten, plan)
