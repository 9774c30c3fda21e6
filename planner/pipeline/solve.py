"""Solve: the data path from a model to a report.

load → training step → formulate → bound → search → place → check → realize → execute → report
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from graph.autodiff.gradients.events import GradientEvent
from graph.autodiff.objective import Objective
from graph.cancellation import unless_cancelled
from graph.gc_pause import gc_paused
from graph.ir import Graph
from graph.limits import Limits
from planner.advice import technique_execution
from planner.advice.techniques import TechniqueContext
from planner.formulation import execution_check, offloading
from planner.formulation.execution_check import NOT_EXECUTED, ExecutionResult
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.formulation import Formulation
from planner.formulation.search_result import SearchResult
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline import multi_shape
from planner.pipeline.progress import OnPlanned, Outcome, Progress
from planner.pipeline.report_beside import ReportBeside
from planner.pipeline.sections import graph_documents, optional_sections, slow_sections_part
from planner.pipeline.solve_copies import with_engines
from planner.pipeline.solve_stages import SolveStages
from planner.problem.plan import Candidate, Plan
from planner.report.report import build_report
from planner.request.plan_request import Request


def solve(
    model: bytes | Graph,
    request: Request,
    *,
    limits: Limits | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_planned: OnPlanned | None = None,
    cancel: threading.Event | None = None,
    seeds: Sequence[Candidate] = (),
    known: SearchResult | None = None,
    given: Candidate | None = None,
) -> Outcome:
    """Plan a model. An unreachable budget is a result, not an error.

    `seeds` are legal orders of the planned graph; the result is no worse than any of them. `known` is the search result
    of the same request on an equivalent graph (same up to names); it replaces the search. `given` is the order of the
    plan, which is bounded and reported without a search. Setting `cancel` ends the search; the best plan so far is then
    finished and returned. `on_planned` gets the report before the graphs are executed, if they are.
    Raises BadGraph, BadRequest; IllegalPlan if `known` is about another problem; CancellationError if `cancel` is set
    before the first plan, unless there are seeds or the model is so small that the first plan takes GRACE_CHECKS checks
    or fewer.
    """
    stages = SolveStages(on_progress, cancel or threading.Event(), bool(seeds))
    if request.shapes:
        return multi_shape.solve(model, request, limits, stages, on_planned)
    return _solve(model, request, limits, stages, seeds, known, given, on_planned)


def _solve(
    model: bytes | Graph,
    request: Request,
    limits: Limits | None,
    stages: SolveStages,
    seeds: Sequence[Candidate],
    known: SearchResult | None,
    given: Candidate | None,
    on_planned: OnPlanned | None,
) -> Outcome:
    """The data path for one set of input shapes."""
    events: list[GradientEvent] = []
    objectives: list[Objective] = []
    with stages("read"):
        forward = load_model(model, request, limits)
    with stages("differentiate"):
        source, notes = training_graph(model, forward, request, events if request.gradient_events else None, objectives)
    if known is None:
        found = _search(source, request, stages, seeds, given)
    else:
        found = _reuse(known, source, request, stages)
    formulation, plan = replace(found.formulation, objective=next(iter(objectives), None)), found.plan
    with stages("rewrite"):
        formulation.check(plan)
        realized = execution_check.RealizedPlan.from_plan(formulation, plan)
        context = TechniqueContext(model, forward, source, request, limits, stages.cancel)
        sections, section_notes = optional_sections(formulation, realized.runs, events, context)
        mirrored = found.beside.mirrored(formulation)
    warnings = (*notes, *formulation.warnings, *found.notes, *section_notes)

    def report_of(executed: ExecutionResult) -> dict[str, Any]:
        data = stages.report_data(realized, mirrored, executed, warnings, request)
        return build_report(data, found.beside.identity(), sections)

    if on_planned is not None and found.executed is None and request.execute != "no":
        on_planned(report_of(ExecutionResult(NOT_EXECUTED)))
    with stages.executing():
        executed = found.executed or _execute(model, forward, realized, request, limits, stages.cancel)
    with gc_paused():
        sections |= graph_documents(request, found.beside.document, realized.runs)
        report = report_of(executed)
        result_of = partial(SearchResult.of, formulation, plan, found.notes, stages.stopped_by_clock, executed)
        return Outcome(report, source, realized.runs, plan, result_of)


class _PlacedPlan(NamedTuple):
    """Result of a search, or of a stored search result, on one graph."""

    formulation: Formulation
    plan: Plan  # with addresses
    notes: tuple[str, ...]
    beside: ReportBeside
    executed: ExecutionResult | None = None  # None: to be executed


def _search(
    source: Graph, request: Request, stages: SolveStages, seeds: Sequence[Candidate], given: Candidate | None
) -> _PlacedPlan:
    """Formulate, bound, search unless an order is given, place and tighten the bound."""
    with stages("plan"):
        formulation = stages.formulate(source, request)
        beside = ReportBeside(formulation, source, request)
        stages.start_clock(formulation, slow_sections_part(request, beside.makes_document))
        has_engines = formulation.overlaps or (request.offload and not offloading.why_no_copies(formulation, request))
        whole, is_given = formulation, given is not None or request.planner == "as_given"
        if has_engines:
            formulation = offloading.with_collectives_in_line(stages.with_share(formulation, offloading.PLAIN_SHARE))
        formulation = stages.bounded(formulation)
        if given is None:
            plan = stages.search(stages.for_search(formulation, request), request.planner, seeds)
        else:
            plan = formulation.plan_of(given)
    with stages("layout"):
        plan, layout_notes = stages.placed(formulation, plan, request, seeds)
    with stages.resumed("plan"):
        if has_engines:
            beginning = offloading.with_bounds_of(formulation, whole)
            formulation, plan = with_engines(beginning, plan, request, stages, is_given)
        else:
            formulation = stages.with_tight_bound(formulation, plan)
    return _PlacedPlan(formulation, plan, (*stages.notes, *layout_notes), beside)


def _reuse(known: SearchResult, source: Graph, request: Request, stages: SolveStages) -> _PlacedPlan:
    """As `_search`, from a search result. Raises IllegalPlan if that is about another problem."""
    stages.elapsed |= {"plan": 0.0, "layout": 0.0}
    with stages("rewrite"):
        applied = known.applied(stages.formulate(source, known.with_budget(request)), request)
    stages.stopped_by_clock = known.stopped_by_clock
    return _PlacedPlan(*applied, known.notes, ReportBeside(applied[0], source, request), known.executed)


def _execute(
    model: bytes | Graph,
    forward: Graph,
    realized: execution_check.RealizedPlan,
    request: Request,
    limits: Limits | None,
    cancel: threading.Event,
) -> ExecutionResult:
    """Run source and rewritten graph; compare a graph that the request rewrote with the step before the rewrite."""
    smaller = partial(with_smaller_batch, model, forward, request, limits, groups=realized.formulation.lowered.groups)
    executed = execution_check.run_and_compare(realized, request, smaller, cancel)
    return unless_cancelled(
        cancel, lambda result: technique_execution.with_rewrite_check(result, model, request, limits), executed
    )
