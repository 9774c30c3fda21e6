"""What else would lower the peak: each lever with a full plan, never a guess.

    micro_batches     the batch in k parts, gradients added up, one update           (a graph differentiated here)
    chunked_loss      the rows of a cross-entropy in k parts, each forward and back  (a graph differentiated here)
    fused_attention   products around a softmax as one node that keeps no scores     (no way back made elsewhere)
    update_as_ready   a parameter is updated as soon as its gradient is complete     (a recipe, or update nodes)
    offload           what is long not looked at is copied to the host and back      (a budget, a known bandwidth)

A lever changes the graph or the question; what it reaches is planned like any other question, and checked. Where the
graph is another, it is run, and its loss and gradients are compared with those of the step as it was asked about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graph.analysis.cost import resolve_device
from graph.errors import BadGraph
from graph.ir import Graph, Phase
from graph.limits import Limits
from planner.advice import technique_execution
from planner.advice.offload import order_within, with_offload_tasks
from planner.bounds import held_at_end, largest_task
from planner.errors import BadRequest
from planner.formulation.formulation import Formulation
from planner.problem import UPDATE
from planner.problem.alternatives import resolve_choices
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Plan
from planner.request.budget import Budget
from planner.request.plan_request import Request
from planner.search import lexicographic, portfolio
from planner.search.portfolio import Candidate
from planner.verify.checker import DisplayNames, check

#: Parts that a batch, and the rows of a loss, are cut into until the plan fits; and each lever's part of the search.
BATCH_PARTS, LOSS_CHUNKS, TECHNIQUE_PART = (2, 4, 8), (4, 16), 0.25


@dataclass(frozen=True, eq=False, slots=True)
class TechniqueContext:
    """A model that was planned, and how to plan it again under another request."""

    model: bytes | Graph
    forward: Graph
    source: Graph
    request: Request
    limits: Limits | None
    solve: Callable[[Request], TechniquePlan]
    cancel: threading.Event

    @property
    def is_differentiated_here(self) -> bool:
        """The way back of what was planned was made from the model."""
        return any(node.phase is not Phase.FORWARD for node in self.source.nodes) and all(
            node.phase is Phase.FORWARD for node in self.forward.nodes
        )


@dataclass(frozen=True, eq=False, slots=True)
class TechniquePlan:
    """What a lever's plan says."""

    question: Formulation
    plan: Plan


@dataclass(frozen=True, slots=True)
class _Technique:
    """One way to change the request; a step takes `passes` times what is planned but for the update."""

    name: str
    request: Request
    parts: int = 1
    passes: int = 1


def technique_rows(question: Formulation, asked: TechniqueContext) -> Iterator[dict[str, Any]]:
    """A row for each lever: what it reaches, or `why` it does not apply."""
    for name, ways in TECHNIQUES.items():
        found = ways(question, asked)
        yield {"lever": name, "why": found} if isinstance(found, str) else _first_that_fits(question, asked, found)
    yield _offloaded(question, asked)


def _first_that_fits(question: Formulation, asked: TechniqueContext, ways: list[_Technique]) -> dict[str, Any]:
    """The first way whose plan fits, or the last one tried; one that cannot be built ends the list."""
    row: dict[str, Any] | None = None
    for way in ways:
        try:
            row = _reached(question, way, asked)
        except (BadGraph, BadRequest) as error:
            row = row or {"lever": way.name, "why": str(error).splitlines()[0]}
            break
        if row["fits"]:
            break
    assert row is not None
    if "why" not in row:
        way = next(way for way in ways if way.parts == row["parts"])
        row["executed"] = technique_execution.check_step_equivalence(
            asked.model, asked.request, way.request, way.passes, asked.limits
        )
    return row


def _micro_batches(question: Formulation, asked: TechniqueContext) -> list[_Technique] | str:
    """The batch in parts, gradients added up."""
    batch = _batch(asked.forward)
    parts = [k for k in BATCH_PARTS if batch % k == 0 and batch > k]
    if not asked.is_differentiated_here:
        return "the graph is planned as it stands; plan its forward part with a loss"
    if isinstance(asked.model, Graph):
        return "the model is a graph in memory; plan its document"
    if not parts:
        return "the inputs have no common leading length that can be divided"
    return [_Technique("micro_batches", _in_parts(asked, batch, k), k, k) for k in parts]


def _in_parts(asked: TechniqueContext, batch: int, parts: int) -> Request:
    """The request about one micro-batch, whose gradients are added to those of the others."""
    graph, request = asked.forward, asked.request
    shapes = {graph.values[v].name: graph.values[v].type.shape for v in graph.inputs}  # type: ignore[union-attr]
    inputs = {
        name: (batch // parts, *shape[1:]) if shape and shape[0] == batch else shape for name, shape in shapes.items()
    }
    recipe = dict(request.recipe or {})
    recipe["accumulate"] = parts * int(recipe.get("accumulate", 1))
    return replace(request, inputs={**request.inputs, **inputs}, batch=None, dims={}, recipe=recipe)


def _chunked_loss(question: Formulation, asked: TechniqueContext) -> list[_Technique] | str:
    """The rows of the loss in chunks."""
    if not asked.is_differentiated_here:
        return "the graph is planned as it stands; plan its forward part with a loss"
    if asked.request.loss_chunks > 1:
        return "done already"
    return [_Technique("chunked_loss", replace(asked.request, loss_chunks=k), k) for k in LOSS_CHUNKS]


def _fused_attention(question: Formulation, asked: TechniqueContext) -> list[_Technique] | str:
    """Every attention as one node."""
    if asked.request.fuse_attention:
        return "done already"
    if any(node.phase is not Phase.FORWARD for node in asked.forward.nodes):
        return "the way back was made elsewhere; plan the forward part"
    return [_Technique("fused_attention", replace(asked.request, fuse_attention=True))]


def _update_as_ready(question: Formulation, asked: TechniqueContext) -> list[_Technique] | str:
    """Every parameter updated as soon as nothing reads it any more, in the backward part."""
    request = asked.request
    recipe = dict(request.recipe or {})
    updates = any(node.phase is Phase.UPDATE for node in asked.source.nodes)
    if recipe.get("optimizer", "none") != "none":
        changed = replace(request, recipe={**recipe, "update": "as_ready"})
        done = recipe.get("update") == "as_ready"
        why = "done already" if done else "clipping needs every gradient first" if recipe.get("clip") else ""
    else:
        changed = replace(request, phases="mixed")
        why = "" if updates and question.goal.strict_phases else "there is no update to move"
    return why or [_Technique("update_as_ready", changed)]


#: Name -> ways to pull it, the mildest first, or why it does not apply.
TECHNIQUES: dict[str, Callable[[Formulation, TechniqueContext], list[_Technique] | str]] = {
    "micro_batches": _micro_batches,
    "chunked_loss": _chunked_loss,
    "fused_attention": _fused_attention,
    "update_as_ready": _update_as_ready,
}


def _reached(question: Formulation, way: _Technique, asked: TechniqueContext) -> dict[str, Any]:
    """What the planner reaches under the lever's request, within the budget of the question."""
    request = way.request
    budget = None if question.budget_bytes is None else Budget(bytes=question.budget_bytes)
    iterations = _part_of(request.iterations)
    found = asked.solve(
        replace(
            request,
            budget=budget,
            fits=None,
            fraction_of="baseline",
            layout="none",
            execute="no",
            advise=False,
            advise_checkpoints=False,
            share_buffers=False,
            gradient_events=False,
            iterations=iterations,
            search_seconds=request.search_seconds * TECHNIQUE_PART,
        )
    )
    problem = resolve_choices(found.question.lowered.problem, found.plan.choices)
    ticks = problem.cost[found.plan.order]
    once = int(ticks[problem.phase[found.plan.order] == UPDATE].sum())
    seconds = (way.passes * (int(ticks.sum()) - once) + once) * problem.tick
    peak = found.question.count.counted(found.plan.score.peak_bytes)
    return _row(question, way.name, way.parts, peak, seconds, _request_fields(request))


def _part_of(iterations: int | None) -> int | None:
    return None if iterations is None else max(1, int(iterations * TECHNIQUE_PART))


def _row(
    question: Formulation, name: str, parts: int, peak_bytes: int, seconds: float, request: dict[str, Any]
) -> dict[str, Any]:
    """What a lever reaches, beside the question without it."""
    limit = question.memory_bytes if question.budget_bytes in (None, 0) else question.budget_bytes
    base = question.baseline_cost * question.lowered.problem.tick
    return {
        "lever": name,
        "parts": parts,
        "peak_bytes": peak_bytes,
        "seconds": seconds,
        "overhead": seconds / base - 1 if base else 0.0,
        "fits": peak_bytes <= (limit or 0),
        "request": request,
    }


def _offloaded(question: Formulation, asked: TechniqueContext) -> dict[str, Any]:
    """A plan of the graph as it is, with copies to the host and back; a copy runs alone."""
    device, problem, goal = (
        resolve_device(asked.request.device),
        resolve_choices(question.lowered.problem),
        question.goal,
    )
    why = ""
    if goal.budget_bytes is None:
        why = "copies are weighed against a budget; name one"
    elif not device.host_bytes_per_second:
        why = f"no bandwidth between {device.name} and its host is known; name host_bandwidth in the device"
    elif problem.optional.any():
        why = "some tasks may be left out already"
    if why:
        return {"lever": "offload", "why": why}
    goal = replace(goal, seconds=goal.seconds * TECHNIQUE_PART, iterations=_part_of(goal.iterations))
    copies = with_offload_tasks(problem, device.host_bytes_per_second, device.kernel_seconds, goal.strict_phases)
    lowered = replace(question.lowered, problem=copies.problem, groups=(), known={})
    monitor = Monitor(
        lambda order: portfolio.goal_score(copies.problem, goal, order),
        goal.seconds,
        goal.iterations,
        cancel_event=asked.cancel,
        cost_bound=question.bound.single_run_cost if goal.budget_bytes else 0,
    )
    floor = max(largest_task.bound(problem).bytes, held_at_end.bound(problem))
    seed = Candidate(order_within(copies, goal.budget_bytes or floor, monitor.should_stop), "offload")
    found = lexicographic.search(copies.problem, goal, asked.request.planner, monitor, [seed])
    plan = evaluate(lowered.problem, goal, found.order, found.planner)
    names = question.names()
    check(
        copies.problem,
        goal,
        plan,
        names=DisplayNames(lambda t: copies.name_of(t, names.task, names.buffer), names.buffer),
    )
    used = np.flatnonzero(np.isin(copies.fetch, plan.order))
    if not len(used):
        return {"lever": "offload", "why": "no plan that was found uses a copy"}
    row = _row(
        question, "offload", 1, question.count.counted(plan.score.peak_bytes), plan.score.cost * problem.tick, {}
    )
    row["executed"] = {"status": "not executed", "how": "", "why": "copies to the host have no kernel here"}
    row["offloaded"] = [question.lowered.name_of_buffer(int(b)) for b in copies.buffer[used]]
    return row


def _request_fields(request: Request) -> dict[str, Any]:
    """The fields to ask for the same with."""
    said: dict[str, Any] = {}
    if request.inputs:
        said["inputs"] = {name: list(shape) for name, shape in request.inputs.items()}
    if request.recipe:
        said["recipe"] = dict(request.recipe)
    if request.phases:
        said["phases"] = request.phases
    if request.loss_chunks > 1:
        said["loss_chunks"] = request.loss_chunks
    if request.fuse_attention:
        said["fuse_attention"] = True
    return said


def _batch(graph: Graph) -> int:
    """The leading length that all inputs with a shape have; 1 where there is none."""
    types: list[Any] = [graph.values[v].type for v in graph.inputs]
    leads = {type.shape[0] for type in types if type is not None and type.shape}
    return int(leads.pop()) if len(leads) == 1 and None not in types else 1
