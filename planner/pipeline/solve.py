"""From a model to a report: the whole data path.

load → training step → formulate → bound → search → place → check → realize → execute → report
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from graph.autodiff.gradients.events import GradientEvent
from graph.cancellation import unless_cancelled
from graph.formats.native.writer import document
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.advice import technique_execution
from planner.formulation import arena_repair, execution_check
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.formulation import ALIGNMENT
from planner.formulation.training_graph import load_model, model_identity, training_graph
from planner.lowering.realize import node_sequence, realize
from planner.pipeline import multi_shape
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.pipeline.sections import SectionInputs, optional_sections
from planner.report.report import ReportData, build_report
from planner.request.plan_request import Request
from planner.search.portfolio import Candidate
from planner.verify.checker import check


def solve(
    model: bytes | Graph,
    request: Request,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
    seeds: Sequence[Candidate] = (),
) -> Outcome:
    """Plan a model. Raises BadGraph, BadRequest; an unreachable budget is a result, not an error.

    `seeds` are legal orders of the planned graph; the result is no worse than any of them. A set `cancel` ends the
    search; the best plan so far is then finished and returned. Raises Stopped where it is set before there is one,
    unless the model is small or there are seeds: then the first plan is near.
    """
    stages = SolveStages(on_progress, cancel or threading.Event(), bool(seeds))
    if request.shapes:
        return multi_shape.solve(model, request, limits, stages)
    return _solve(model, request, limits, stages, seeds)


def _solve(
    model: bytes | Graph, request: Request, limits: Limits | None, stages: SolveStages, seeds: Sequence[Candidate]
) -> Outcome:
    """The data path for one set of shapes."""
    events: list[GradientEvent] = []
    with stages("read"):
        forward = load_model(model, request, limits)
    with stages("differentiate"):
        source, notes = training_graph(model, forward, request, events if request.gradient_events else None)
    with stages("plan"):
        question = stages.bounded(stages.formulate(source, request))
        timed = arena_repair.with_repair_time_reserved(question, request)
        plan = stages.search(timed, request.planner, seeds)
        question = stages.with_tight_bound(question, plan)
        mirrored = stages.mirrored(question)
    with stages("layout"):
        plan, layout_notes = stages.placed(question, plan, request)
        check(question.lowered.problem, question.goal, plan, ALIGNMENT, question.names())
    with stages("rewrite"):
        runs = node_sequence(question.lowered, plan)
        rewritten = realize(runs)
        solved = SectionInputs(model, forward, source, rewritten, question, request, limits, events)
        sections, section_notes = optional_sections(solved, stages.cancel)
    with stages("execute"):
        cut = partial(with_smaller_batch, model, forward, request, limits, groups=question.lowered.groups)
        executed = execution_check.run_and_compare(
            execution_check.RealizedPlan(question, plan, runs, rewritten), request, cut, stages.cancel
        )
        executed = unless_cancelled(
            stages.cancel, lambda ran: technique_execution.with_rewrite_check(ran, model, request, limits), executed
        )
    warnings = (*notes, *question.warnings, *stages.notes, *layout_notes, *section_notes)
    facts = ReportData(
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
    with gc_paused():
        documents = {"source": source, "graph": rewritten}
        sections |= {name: document(graph) for name, graph in documents.items() if name in request.returns}
        return Outcome(build_report(facts, model_identity(source), sections), source, rewritten, plan)
