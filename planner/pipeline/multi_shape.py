"""One plan for several sets of input shapes: the same runs for all, checked and run under each.

    model ──set 0──▶ graph ──▶ columns ─╮               ╭─▶ order 0 ──▶ checked, placed, rewritten, executed
          ──set 1──▶ graph ──▶ columns ─┼─▶ decision ───┼─▶ order 1 ──▶ ...
          ──set 2──▶ graph ──▶ columns ─╯               ╰─▶ order 2

A budget in bytes is that of every set; a share is one of the highest peak that any set has as given. The report is that
of the set with the highest peak, so that what it says of memory holds for all; its section `shapes` has a row a set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from graph.autodiff.gradients.events import GradientEvent, gradient_report
from graph.errors import BadGraph
from graph.formats.native.writer import document
from graph.ir import Graph
from graph.limits import Limits
from planner.errors import BadRequest
from planner.formulation import execution_check, metrics
from planner.formulation.arena_repair import arena_bytes
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.formulation import ALIGNMENT, Formulation, with_limit
from planner.formulation.training_graph import gradient_targets, load_model, model_identity, training_graph
from planner.lowering.realize import node_sequence, realize
from planner.pipeline.multi_shape_search import MultiShapeSearch
from planner.pipeline.progress import Outcome, Progress, SolveStages
from planner.pipeline.sections import graph_sections
from planner.problem import same_dataflow
from planner.report.report import ReportData, build_report, plan_metrics
from planner.request.budget import Budget
from planner.request.plan_request import Request
from planner.verify.checker import check


@dataclass(frozen=True, eq=False, slots=True)
class ShapeCase:
    """The model under one set of shapes."""

    request: Request  # about that set alone
    forward: Graph
    source: Graph
    notes: tuple[str, ...]
    events: tuple[GradientEvent, ...]
    question: Formulation


def solve(model: bytes | Graph, request: Request, limits: Limits | None, stages: SolveStages) -> Outcome:
    """Plan a model for all of `request.shapes`. Raises BadGraph, BadRequest, and BadRequest where graphs differ."""
    if isinstance(model, Graph):
        raise BadRequest.one(
            "cannot_rebind",
            "shapes",
            "a graph that has its shapes",
            "a model file or document",
            "give the bytes of the model, from which each set is read",
        )
    cases = _cases(model, request, limits, stages)
    with stages("plan"):
        cases = [replace(case, question=stages.bounded(case.question)) for case in cases]
        questions = [case.question for case in cases]

        def tell(extra: float, peak_bytes: int, floor: float) -> None:
            now = time.monotonic() - stages.started
            stages.tell(Progress("plan", now, extra, peak_bytes, floor, extra - floor))

        deciding = MultiShapeSearch(questions, request.planner, stages.cancel, tell)
        decision = deciding.run()
        stages.stopped_by_clock |= deciding.stopped_by_clock
        if request.planner != "auto":  # there, one that cannot do anything is no news
            stages.notes = deciding.notes
        plans = [
            question.evaluated(order, decision.planner, decision.choices)
            for question, order in zip(questions, decision.orders, strict=True)
        ]
        peaks = [q.count.counted(plan.score.peak_bytes) for q, plan in zip(questions, plans, strict=True)]
        worst = peaks.index(max(peaks))
        questions[worst] = stages.with_tight_bound(questions[worst], plans[worst])
    with stages("layout"):
        plans = [q.placed(plan, request.layout, stages.cancel) for q, plan in zip(questions, plans, strict=True)]
        for q, plan in zip(questions, plans, strict=True):
            check(q.lowered.problem, q.goal, plan, ALIGNMENT, q.names())
    with stages("rewrite"):
        runs = [node_sequence(q.lowered, plan) for q, plan in zip(questions, plans, strict=True)]
        made = [
            execution_check.RealizedPlan(q, plan, run, realize(run))
            for q, plan, run in zip(questions, plans, runs, strict=True)
        ]
        sections = graph_sections(questions[worst], made[worst].rewritten, request, stages.cancel)
        if request.gradient_events:
            sections["gradients"] = gradient_report(cases[worst].source, cases[worst].events, gradient_targets(request))
    with stages("execute"):
        executed = [_executed(model, case, planned, limits, stages) for case, planned in zip(cases, made, strict=True)]
    question, source = questions[worst], cases[worst].source
    mirrored = stages.mirrored(question)
    sections["shapes"] = _section(cases, made, executed, worst, request)
    for name, graph in (("source", source), ("graph", made[worst].rewritten)):
        if name in request.returns:
            sections[name] = document(graph)
    different = [ran for ran in executed if ran.status == execution_check.DIFFERENT]
    notes = dict.fromkeys(note for case in cases for note in (*case.notes, *case.question.warnings))
    facts = ReportData(
        question,
        plans[worst],
        runs[worst],
        mirrored,
        (different or [executed[worst]])[0],
        (*notes, *stages.notes),
        stages.elapsed,
        stages.stopped_by_clock,
        stages.cancel.is_set(),
        request,
    )
    return Outcome(build_report(facts, model_identity(source), sections), source, made[worst].rewritten, plans[worst])


def _cases(model: bytes, request: Request, limits: Limits | None, stages: SolveStages) -> list[ShapeCase]:
    """The model under each set, with one budget for all."""
    alone = [request.under(shapes) for shapes in request.shapes]
    with stages("read"):
        forwards = [_read(model, request, k, limits) for k in range(len(alone))]
        names = [{node.name for node in forward.nodes} for forward in forwards]
        if any(there != names[0] for there in names):  # a result that is small under one set is known there
            every = set().union(*names)
            forwards = [load_model(model, one, limits, every) for one in alone]
    with stages("differentiate"):
        events: list[list[GradientEvent]] = [[] for _ in alone]
        steps = [
            training_graph(model, forward, one, told if request.gradient_events else None)
            for one, forward, told in zip(alone, forwards, events, strict=True)
        ]
    with stages("plan"):
        cases: list[ShapeCase] = []
        for one, forward, (source, notes), told in zip(alone, forwards, steps, events, strict=True):
            groups = cases[0].question.lowered.groups if cases else ()
            asked = replace(one, budget=Budget(bytes=0)) if one.budget is not None else one
            question = stages.formulate(source, asked, groups)
            cases.append(ShapeCase(one, forward, source, tuple(notes), tuple(told), question))
    for k, case in enumerate(cases):
        _check_same_graph(cases[0], case, k)
    if request.budget is None:
        return cases
    peaks = [case.question.count.counted(case.question.baseline.score.peak_bytes) for case in cases]
    highest = cases[peaks.index(max(peaks))].question
    shared = request
    if not request.lowest_peak:
        shared = replace(request, budget=Budget(bytes=with_limit(highest, request, None, stages.cancel).budget_bytes))
    return [replace(case, question=with_limit(case.question, shared, None)) for case in cases]


def _read(model: bytes | Graph, request: Request, k: int, limits: Limits | None) -> Graph:
    """The model under set k; faults of what that set says are told as its own."""
    own = request.shapes[k]
    said = (*(f"inputs.{name}" for name in own.inputs), *(f"dims.{name}" for name in own.dims))
    said += ("batch",) if own.batch is not None else ()
    try:
        return load_model(model, request.under(own), limits)
    except BadGraph as error:
        found = [
            replace(one, path=f"shapes[{k}].{one.path}") if one.path.startswith(said) else one for one in error.findings
        ]
        raise BadGraph(found, error.left_out, error.excerpt) from None


def _check_same_graph(first: ShapeCase, other: ShapeCase, k: int) -> None:
    """Raises BadRequest unless an order of one set is legal for the other."""
    one, two = first.question.lowered, other.question.lowered
    names = [[node.name for node in lowered.graph.nodes] for lowered in (one, two)]
    fits = names[0] == names[1] and same_dataflow(one.problem, two.problem)
    if fits and one.problem.choices.counts().tolist() == two.problem.choices.counts().tolist():
        return
    apart = [f"{a}, not {b}" for a, b in zip(*names, strict=False) if a != b]
    found = f"{len(names[1])} nodes, not {len(names[0])}" if len(names[0]) != len(names[1]) else "other reads or bodies"
    raise BadRequest.one(
        "shapes_differ",
        f"shapes[{k}]",
        apart[0] if apart else found,
        "the same nodes as shapes[0] makes",
        "plan that set by itself",
    )


def _executed(
    model: bytes, case: ShapeCase, planned: execution_check.RealizedPlan, limits: Limits | None, stages: SolveStages
) -> execution_check.ExecutionResult:
    groups = planned.question.lowered.groups
    return execution_check.run_and_compare(
        planned,
        case.request,
        lambda batch: with_smaller_batch(model, case.forward, case.request, limits, batch, groups),
        stages.cancel,
    )


def _section(
    cases: list[ShapeCase],
    made: list[execution_check.RealizedPlan],
    executed: list[execution_check.ExecutionResult],
    worst: int,
    request: Request,
) -> dict[str, Any]:
    """A row a set; `order` is null where it is that of the plan."""
    of_plan = made[worst].runs.nodes
    rows = []
    for case, planned, ran in zip(cases, made, executed, strict=True):
        is_same = planned.runs.nodes == of_plan
        row = _row(case, planned, ran)
        row["order"] = None if is_same else [list(run) for run in planned.runs.runs(planned.question.lowered)]
        if "graph" in request.returns and not is_same:
            row["graph"] = document(planned.rewritten)
        rows.append(row)
    return {
        "worst": worst,
        "within": all(row["within"] for row in rows),
        "one_order": all(row["order"] is None for row in rows),
        "peak_bytes": max(row["peak_bytes"] for row in rows),
        "overhead": max(row["overhead"] for row in rows),
        "bound_overhead": max(row["bound_overhead"] for row in rows),
        "sets": rows,
    }


def _row(
    case: ShapeCase, planned: execution_check.RealizedPlan, ran: execution_check.ExecutionResult
) -> dict[str, Any]:
    question, plan = planned.question, planned.plan
    score, goal = plan.score, question.goal
    within = score.bytes_over_budget == 0 if goal.budget_bytes else True
    if goal.max_overhead is not None:
        within = score.cost <= int(question.lowered.problem.cost.sum() * (1 + goal.max_overhead))
    least = question.bound.cost if goal.budget_bytes and within else question.bound.single_run_cost
    return {
        "inputs": _shapes_of(case.forward),
        "model": model_identity(case.source),
        "baseline": plan_metrics(question, question.baseline),
        "budget_bytes": question.budget_bytes,
        "peak_bytes": question.count.counted(score.peak_bytes),
        "arena_bytes": arena_bytes(question, plan),
        "seconds": score.cost * question.lowered.problem.tick,
        "overhead": metrics.overhead(score.cost, question.baseline_cost),
        "bound_overhead": metrics.overhead(least, question.baseline_cost),
        "bound_peak_bytes": question.count.counted(question.bound.peak_bytes),
        "within": within,
        "executed": {"status": ran.status, "how": ran.how, "why": ran.why},
    }


def _shapes_of(graph: Graph) -> Mapping[str, list[int] | None]:
    """Input -> its shape; null where only its bytes are known."""
    types = {graph.values[v].name: graph.values[v].type for v in graph.inputs}
    return {name: None if type is None else list(type.shape) for name, type in types.items()}
