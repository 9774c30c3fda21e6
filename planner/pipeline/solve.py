"""Solve: the data path from a model to a report.

load → training step → formulate → bound → search → place → check → realize → execute → report
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from graph.autodiff.gradients.events import GradientEvent
from graph.cancellation import unless_cancelled
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.advice import technique_execution
from planner.advice.techniques import TechniqueContext
from planner.formulation import arena_repair, execution_check
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.training_graph import load_model, model_identity, training_graph
from planner.pipeline import multi_shape
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.pipeline.sections import graph_documents, optional_sections
from planner.problem.plan import Candidate
from planner.report.report import build_report
from planner.request.plan_request import Request


def solve(
    model: bytes | Graph,
    request: Request,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    cancel: threading.Event | None = None,
    seeds: Sequence[Candidate] = (),
) -> Outcome:
    """Plan a model. An unreachable budget is a result, not an error.

    `seeds` are legal orders of the planned graph; the result is no worse than any of them. Setting `cancel` ends the
    search; the best plan so far is then finished and returned.
    Raises BadGraph, BadRequest; CancellationError if `cancel` is set before the first plan, unless there are seeds or
    the model is so small that the first plan takes GRACE_CHECKS checks or fewer.
    """
    stages = SolveStages(on_progress, cancel or threading.Event(), bool(seeds))
    if request.shapes:
        return multi_shape.solve(model, request, limits, stages)
    return _solve(model, request, limits, stages, seeds)


def _solve(
    model: bytes | Graph, request: Request, limits: Limits | None, stages: SolveStages, seeds: Sequence[Candidate]
) -> Outcome:
    """The data path for one set of input shapes."""
    events: list[GradientEvent] = []
    with stages("read"):
        forward = load_model(model, request, limits)
    with stages("differentiate"):
        source, notes = training_graph(model, forward, request, events if request.gradient_events else None)
    with stages("plan"):
        formulation = stages.bounded(stages.formulate(source, request))
        plan = stages.search(arena_repair.with_repair_time_reserved(formulation, request), request.planner, seeds)
        formulation = stages.with_tight_bound(formulation, plan)
        mirrored = stages.mirrored(formulation)
    with stages("layout"):
        plan, layout_notes = stages.placed(formulation, plan, request)
        formulation.check(plan)
    with stages("rewrite"):
        realized = execution_check.RealizedPlan.from_plan(formulation, plan)
        context = TechniqueContext(model, forward, source, request, limits, stages.cancel)
        sections, section_notes = optional_sections(formulation, realized.rewritten, events, context)
    with stages("execute"):
        executed = _execute(model, forward, realized, request, limits, stages.cancel)
    warnings = (*notes, *formulation.warnings, *stages.notes, *layout_notes, *section_notes)
    with gc_paused():
        data = stages.report_data(realized, mirrored, executed, warnings, request)
        sections |= graph_documents(request, source, realized.rewritten)
        return Outcome(build_report(data, model_identity(source), sections), source, realized.rewritten, plan)


def _execute(
    model: bytes | Graph,
    forward: Graph,
    realized: execution_check.RealizedPlan,
    request: Request,
    limits: Limits | None,
    cancel: threading.Event,
) -> execution_check.ExecutionResult:
    """Run source and rewritten graph; compare a graph that the request rewrote with the step before the rewrite."""
    smaller = partial(with_smaller_batch, model, forward, request, limits, groups=realized.formulation.lowered.groups)
    executed = execution_check.run_and_compare(realized, request, smaller, cancel)
    return unless_cancelled(
        cancel, lambda result: technique_execution.with_rewrite_check(result, model, request, limits), executed
    )
