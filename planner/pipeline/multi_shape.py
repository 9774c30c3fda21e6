"""One plan for several sets of input shapes: the same task runs for all, checked and executed under each.

    model ──set 0──▶ graph ──▶ columns ─╮               ╭─▶ order 0 ──▶ checked, placed, rewritten, executed
          ──set 1──▶ graph ──▶ columns ─┼─▶ decision ───┼─▶ order 1 ──▶ ...
          ──set 2──▶ graph ──▶ columns ─╯               ╰─▶ order 2

A budget in bytes applies to every set; a fractional budget is a share of the highest baseline peak of any set. The
report is about the set with the highest peak, so its memory figures hold for all sets. Its section `shapes` has one
row for each set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from graph.autodiff.gradients.events import GradientEvent, gradient_report
from graph.autodiff.objective import Objective
from graph.errors import BadGraph
from graph.formats.native.identity import model_identity
from graph.formats.native.writer import document
from graph.ir import Graph
from graph.limits import Limits
from planner.errors import BadRequest
from planner.formulation.execution_check import DIFFERENT, NOT_EXECUTED, ExecutionResult, RealizedPlan, run_and_compare
from planner.formulation.formulate import with_smaller_batch
from planner.formulation.formulation import Formulation
from planner.formulation.goal_of_request import with_limit
from planner.formulation.training_graph import gradient_targets, load_model, training_graph
from planner.pipeline import arena_repair
from planner.pipeline.multi_shape_search import MultiShapeSearch
from planner.pipeline.progress import OnPlanned, Outcome
from planner.pipeline.sections import graph_documents, graph_sections
from planner.pipeline.solve_stages import LAST_BOUND_PART, SolveStages
from planner.problem import same_dataflow
from planner.problem.monitor import Monitor
from planner.problem.plan import Plan
from planner.report.report import baseline_metrics, build_report, executed_section
from planner.request.budget import Budget
from planner.request.plan_request import Request

#: Share of the remaining time for a search within smaller budgets, if addresses exceed the budget.
REPAIR_PART = 0.4
#: Multiples of the excess by which the budgets are lowered to repair an arena.
REPAIR_CHARGES = (1, 2, 4)


@dataclass(frozen=True, eq=False, slots=True)
class ShapeCase:
    """The model under one set of input shapes."""

    request: Request  # for this set alone
    forward: Graph
    source: Graph
    notes: tuple[str, ...]
    events: tuple[GradientEvent, ...]
    formulation: Formulation


def solve(
    model: bytes | Graph,
    request: Request,
    limits: Limits | None,
    stages: SolveStages,
    on_planned: OnPlanned | None = None,
) -> Outcome:
    """Plan a model for all of `request.shapes`. `on_planned` gets the report before the graphs are executed.

    Raises BadGraph; BadRequest, also if the sets lead to different graphs or the model is a graph in memory.
    """
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
        seconds = cases[0].formulation.goal.seconds
        stages.start_clock(cases[0].formulation)
        cases = [replace(case, formulation=stages.bounded(case.formulation)) for case in cases]
        formulations = [case.formulation for case in cases]
        reserved = LAST_BOUND_PART + (arena_repair.RESERVED_PART if arena_repair.may_follow(formulations[0]) else 0.0)
        plans = _search(formulations, request, stages, (1 - reserved) * seconds)
    with stages("layout"):
        until = stages.clock.until - LAST_BOUND_PART * seconds
        plans = _repaired(formulations, _placed(formulations, plans, request, stages, until), request, stages, until)
        worst = _highest(formulations, plans)
    with stages.resumed("plan"):
        formulations[worst] = stages.with_tight_bound(formulations[worst], plans[worst])
        for formulation, plan in zip(formulations, plans, strict=True):
            formulation.check_baseline()
            formulation.check(plan)
    with stages("rewrite"):
        realized = [RealizedPlan.from_plan(*pair) for pair in zip(formulations, plans, strict=True)]
        sections = graph_sections(formulations[worst], realized[worst].runs, request, stages.cancel)
        if request.gradient_events:
            sections["gradients"] = gradient_report(cases[worst].source, cases[worst].events, gradient_targets(request))
    source, runs = cases[worst].source, realized[worst].runs
    mirrored = formulations[worst].mirrored()
    notes = dict.fromkeys(note for case in cases for note in (*case.notes, *case.formulation.warnings))

    def report_of(executed: list[ExecutionResult]) -> dict[str, Any]:
        sections["shapes"] = _section(cases, realized, executed, worst, request)
        shown = next((result for result in executed if result.status == DIFFERENT), executed[worst])
        data = stages.report_data(realized[worst], mirrored, shown, (*notes, *stages.notes), request)
        return build_report(data, model_identity(source), sections)

    if on_planned is not None and request.execute != "no":
        on_planned(report_of([ExecutionResult(NOT_EXECUTED)] * len(cases)))
    with stages.executing():
        executed = [_execute(model, case, each, limits, stages) for case, each in zip(cases, realized, strict=True)]
    sections |= graph_documents(request, partial(document, source), runs)
    return Outcome(report_of(executed), source, runs, plans[worst])


def _cases(model: bytes, request: Request, limits: Limits | None, stages: SolveStages) -> list[ShapeCase]:
    """The model under each set of shapes, with one budget for all. Raises BadGraph, BadRequest."""
    requests = [request.under(shapes) for shapes in request.shapes]
    with stages("read"):
        forwards = _forward_graphs(model, request, requests, limits)
    with stages("differentiate"):
        events: list[list[GradientEvent]] = [[] for _ in requests]
        objectives: list[list[Objective]] = [[] for _ in requests]
        steps = [
            training_graph(model, forward, one, set_events if request.gradient_events else None, objective)
            for one, forward, set_events, objective in zip(requests, forwards, events, objectives, strict=True)
        ]
    with stages("plan"):
        cases: list[ShapeCase] = []
        for one, forward, (source, notes), set_events, objective in zip(
            requests, forwards, steps, events, objectives, strict=True
        ):
            groups = cases[0].formulation.lowered.groups if cases else ()
            without_share = replace(one, budget=Budget(bytes=0)) if one.budget is not None else one
            formulation = stages.formulate(source, without_share, groups)
            formulation = replace(formulation, objective=next(iter(objective), None))
            cases.append(ShapeCase(one, forward, source, tuple(notes), tuple(set_events), formulation))
    for k, case in enumerate(cases):
        _check_same_graph(cases[0], case, k)
    return cases if request.budget is None else _with_shared_budget(cases, request, stages)


def _forward_graphs(model: bytes, request: Request, requests: list[Request], limits: Limits | None) -> list[Graph]:
    """The model under each set of shapes, with the same nodes. Raises BadGraph."""
    forwards = [_read(model, request, k, limits) for k in range(len(requests))]
    names = [{node.name for node in forward.nodes} for forward in forwards]
    if all(node_names == names[0] for node_names in names):
        return forwards
    # A reader folds small results into constants, under some sets only: keep those nodes in every set.
    every = set().union(*names)
    return [load_model(model, one, limits, every) for one in requests]


def _with_shared_budget(cases: list[ShapeCase], request: Request, stages: SolveStages) -> list[ShapeCase]:
    """Apply the request's budget to all sets; a share is one of the highest baseline peak."""
    formulations = [case.formulation for case in cases]
    highest = formulations[_highest(formulations, [formulation.baseline for formulation in formulations])]
    shared = request
    if not request.lowest_peak:
        highest = with_limit(highest, request, None, stages.cancel)
        shared = replace(request, budget=Budget(bytes=highest.budget_bytes))

    def limited(formulation: Formulation) -> Formulation:
        within = with_limit(formulation, shared, None)
        return replace(within, goal=replace(within.goal, seconds=highest.goal.seconds))

    return [replace(case, formulation=limited(case.formulation)) for case in cases]


def _highest(formulations: list[Formulation], plans: list[Plan]) -> int:
    """The set whose plan needs most bytes; of equals the first."""
    pairs = zip(formulations, plans, strict=True)
    needed = [formulation.needed_bytes(plan) for formulation, plan in pairs]
    return needed.index(max(needed))


def _search(
    formulations: list[Formulation], request: Request, stages: SolveStages, seconds: float, less: Sequence[int] = ()
) -> list[Plan]:
    """One decision for all sets, evaluated under each; searched within budgets with `less` bytes for each set."""
    searched = []
    for formulation, bytes in zip(formulations, less or (0,) * len(formulations), strict=True):
        goal, budget = replace(formulation.goal, seconds=seconds), formulation.budget_bytes
        if bytes and budget and goal.budget_bytes:
            goal, budget = replace(goal, budget_bytes=max(1, goal.budget_bytes - bytes)), max(1, budget - bytes)
        searched.append(replace(formulation, goal=goal, budget_bytes=budget).in_arena_bytes())
    search = MultiShapeSearch(searched, request.planner, stages.cancel, stages.emit_incumbent)
    decision = search.run()
    stages.stopped_by_clock |= search.stopped_by_clock
    if request.planner != "auto":  # `auto` runs all planners; notes of one that does not apply are noise
        stages.notes = search.notes
    pairs = zip(formulations, decision.orders, strict=True)
    return [formulation.evaluated(order, decision.planner, decision.choices) for formulation, order in pairs]


def _placed(
    formulations: list[Formulation], plans: list[Plan], request: Request, stages: SolveStages, until: float
) -> list[Plan]:
    """The plans with addresses; those above the budget are packed tighter if possible."""
    placed = []
    for done, (formulation, plan) in enumerate(zip(formulations, plans, strict=True)):
        monitor = _share_of_time(formulation, stages, until, len(plans) - done)
        found = formulation.placed(plan, request.layout, monitor)
        stages.stopped_by_clock |= monitor.stopped_by_clock
        if formulation.places and formulation.bytes_over_budget(found) and not plan.score.bytes_over_budget:
            monitor = _share_of_time(formulation, stages, until, len(plans) - done)
            found = formulation.packed(found, monitor)
            stages.stopped_by_clock |= monitor.stopped_by_clock
        placed.append(found)
    return placed


def _share_of_time(formulation: Formulation, stages: SolveStages, until: float, sets: int) -> Monitor:
    """Monitor for the addresses of one of so many sets: they share the time left."""
    return formulation.monitor(None, stages.cancel, (until - time.monotonic()) / sets)


def _repaired(
    formulations: list[Formulation], plans: list[Plan], request: Request, stages: SolveStages, until: float
) -> list[Plan]:
    """The placed plans, or those of a decision within smaller budgets whose addresses fit under every set."""
    over = list(map(Formulation.bytes_over_budget, formulations, plans))
    if not any(over) or not formulations[0].places or any(plan.score.bytes_over_budget for plan in plans):
        return plans
    for times in REPAIR_CHARGES:
        left = min(formulations[0].goal.seconds, until - time.monotonic())
        if stages.cancel.is_set() or left <= 0:
            break
        found = _search(formulations, request, stages, left * REPAIR_PART, [bytes * times for bytes in over])
        found = _placed(formulations, found, request, stages, until)
        if not any(map(Formulation.bytes_over_budget, formulations, found)):
            return found
    return plans


def _read(model: bytes | Graph, request: Request, k: int, limits: Limits | None) -> Graph:
    """Load the model under set k. Raises BadGraph; findings about the set's own fields get its path."""
    own = request.shapes[k]
    own_paths = (*(f"inputs.{name}" for name in own.inputs), *(f"dims.{name}" for name in own.dims))
    own_paths += ("batch",) if own.batch is not None else ()
    try:
        return load_model(model, request.under(own), limits)
    except BadGraph as error:
        findings = [
            replace(one, path=f"shapes[{k}].{one.path}") if one.path in own_paths else one for one in error.findings
        ]
        raise BadGraph(findings, error.left_out, error.excerpt) from None


def _check_same_graph(first: ShapeCase, other: ShapeCase, k: int) -> None:
    """Raise BadRequest unless an order of one set is legal for the other."""
    one, two = first.formulation.lowered, other.formulation.lowered
    names = [[node.name for node in lowered.graph.nodes] for lowered in (one, two)]
    fits = names[0] == names[1] and same_dataflow(one.problem, two.problem)
    if fits and one.problem.choices.counts().tolist() == two.problem.choices.counts().tolist():
        return
    different = [f"{a}, not {b}" for a, b in zip(*names, strict=False) if a != b]
    found = f"{len(names[1])} nodes, not {len(names[0])}" if len(names[0]) != len(names[1]) else "other reads or bodies"
    raise BadRequest.one(
        "shapes_differ",
        f"shapes[{k}]",
        different[0] if different else found,
        "the same nodes as shapes[0] makes",
        "plan that set by itself",
    )


def _execute(
    model: bytes, case: ShapeCase, realized: RealizedPlan, limits: Limits | None, stages: SolveStages
) -> ExecutionResult:
    groups = realized.formulation.lowered.groups
    smaller = partial(with_smaller_batch, model, case.forward, case.request, limits, groups=groups)
    return run_and_compare(realized, case.request, smaller, stages.cancel)


def _section(
    cases: list[ShapeCase], realized: list[RealizedPlan], executed: list[ExecutionResult], worst: int, request: Request
) -> dict[str, Any]:
    """Section `shapes`: one row for each set; `order` is null where it equals the plan's."""
    worst_nodes = realized[worst].runs.nodes
    rows = []
    for case, each, result in zip(cases, realized, executed, strict=True):
        is_same = each.runs.nodes == worst_nodes
        row = _row(case, each, result)
        row["order"] = None if is_same else [list(run) for run in each.runs.runs(each.formulation.lowered)]
        if "graph" in request.returns and not is_same:
            row["graph"] = document(each.rewritten)
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


def _row(case: ShapeCase, realized: RealizedPlan, result: ExecutionResult) -> dict[str, Any]:
    formulation, plan = realized.formulation, realized.plan
    score, goal = plan.score, formulation.goal
    within = formulation.bytes_over_budget(plan) == 0
    if goal.max_overhead is not None:
        within = score.cost <= goal.cost_limit(formulation.lowered.problem)
    bound = formulation.bound
    cost_bound = bound.cost if goal.budget_bytes and within else bound.single_run_cost
    return {
        "inputs": _shapes_of(case.forward),
        "model": model_identity(case.source),
        "baseline": baseline_metrics(formulation),
        "budget_bytes": formulation.budget_bytes,
        "peak_bytes": formulation.counted_peak(plan),
        "arena_bytes": formulation.arena_bytes(plan),
        "seconds": score.cost * formulation.lowered.problem.tick,
        "overhead": formulation.overhead(score.cost),
        "bound_overhead": formulation.overhead(cost_bound),
        "bound_peak_bytes": formulation.count.counted(bound.peak_bytes),
        "within": within,
        "executed": executed_section(result),
    }


def _shapes_of(graph: Graph) -> Mapping[str, list[int] | None]:
    """Input -> shape; null where only the size in bytes is known."""
    types = {graph.values[v].name: graph.values[v].type for v in graph.inputs}
    return {name: None if type is None else list(type.shape) for name, type in types.items()}
