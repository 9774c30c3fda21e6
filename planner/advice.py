"""What each repeat is worth, and what else would lower the peak: each lever with a full plan, never a guess.

    micro_batches     the batch in k parts, gradients added up, one update       (a graph that is differentiated here)
    update_as_ready   a parameter is updated as soon as its gradient is complete    (a recipe, or update nodes)

A lever changes the graph or the question; what it reaches is planned like any other question, and checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from graph.errors import BadGraph
from graph.ir import Graph, Phase
from planner import liveness
from planner.bounds import held_at_end, largest_task
from planner.budget import Budget
from planner.choices import relaxed, resolved
from planner.closing import without_unread
from planner.errors import BadRequest
from planner.figures import explain
from planner.plan import Plan
from planner.problem import UPDATE
from planner.question import Question
from planner.recompute import is_first_run
from planner.request import Request

#: Repeats that are judged one by one: at most so many, and as many as this many steps allow.
MOST_ROWS, MOST_STEPS = 100, 1_000_000
#: Parts that a batch is cut into, until the plan fits; and the part of the search that each lever gets.
PARTS, LEVER_PART = (2, 4, 8), 0.25


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """A model that was planned, and how to plan it again under another request."""

    model: bytes | Graph
    forward: Graph
    source: Graph
    request: Request
    solve: Callable[[Request], Planned]


@dataclass(frozen=True, eq=False, slots=True)
class Planned:
    """What a lever's plan says."""

    question: Question
    plan: Plan


def worth(question: Question, plan: Plan) -> list[dict[str, Any]]:
    """Rows of `figures.explain`, each with `if_kept`: peak and seconds of the step where the node runs once.

    What ran for the sake of the repeats alone runs less often then as well. None past the limit of rows.
    """
    lowered = question.lowered
    rows, problem = explain(lowered, plan), resolved(lowered.problem, plan.choices)
    first, task_of = is_first_run(problem, plan.order), {lowered.name_of_task(t): t for t in set(plan.order.tolist())}
    judged = min(MOST_ROWS, MOST_STEPS // max(1, len(plan.order)))
    for place, row in enumerate(rows):
        if place >= judged:
            row["if_kept"] = None
            continue
        kept = without_unread(problem, plan.order[first | (plan.order != task_of[row["node"]])])
        peak = question.count.counted(kept.peak)
        row["if_kept"] = {
            "peak_bytes": peak,
            "seconds": liveness.cost(problem, kept.order) * problem.tick,
            "fits": question.budget_bytes is None or peak <= question.budget_bytes,
        }
    return rows


def advise(question: Question, asked: Asked) -> dict[str, Any]:
    """The section `advice` of a report."""
    levers, left_out = [], []
    for lever in (_micro_batches, _update_as_ready):
        found = list(lever(question, asked))
        levers += [row for row in found if "why" not in row]
        left_out += [row for row in found if "why" in row]
    return {"binding": binding(question), "levers": levers, "left_out": left_out}


def binding(question: Question) -> dict[str, Any]:
    """The node no plan's peak goes below, and how far plans could go if it were not there."""
    task, plain = question.bound.binding_task, relaxed(question.lowered.problem)
    held = held_at_end.bound(plain)
    rest, node = held, -1
    if task >= 0:
        optional = plain.optional.copy()
        optional[task] = True
        other = largest_task.bound(replace(plain, optional=optional))
        if other.bytes > held:
            rest, node = other.bytes, other.task
    name = question.lowered.name_of_task
    return {
        "node": name(task) if task >= 0 else None,
        "bytes": question.count.counted(question.bound.peak_bytes),
        "next_node": name(node) if node >= 0 else None,
        "next_bytes": question.count.counted(rest),
    }


def _micro_batches(question: Question, asked: Asked) -> Iterator[dict[str, Any]]:
    """The batch in parts, gradients added up, as few parts as fit; the last tried where none does."""
    batch = _batch(asked.forward)
    made_here = any(node.phase is not Phase.FORWARD for node in asked.source.nodes) and all(
        node.phase is Phase.FORWARD for node in asked.forward.nodes
    )
    parts = [k for k in PARTS if batch % k == 0 and batch > k]
    why = ""
    if not made_here:
        why = "the graph is planned as it stands; plan its forward part with a loss"
    elif isinstance(asked.model, Graph):
        why = "the model is a graph in memory; plan its document"
    elif not parts:
        why = "the inputs have no common leading length that can be divided"
    row: dict[str, Any] = {"lever": "micro_batches", "why": why}
    for k in parts if not why else ():
        try:
            row = _reached(question, _in_parts(asked, batch, k), asked, k)
        except (BadGraph, BadRequest) as error:
            row = {"lever": "micro_batches", "why": str(error).splitlines()[0]}
            break
        if row["fits"]:
            break
    yield row


def _in_parts(asked: Asked, batch: int, parts: int) -> Request:
    """The request about one micro-batch, whose gradients are added to those of the others."""
    graph, request = asked.forward, asked.request
    shapes = {graph.values[v].name: graph.values[v].type.shape for v in graph.inputs}  # type: ignore[union-attr]
    inputs = {
        name: (batch // parts, *shape[1:]) if shape and shape[0] == batch else shape for name, shape in shapes.items()
    }
    recipe = dict(request.recipe or {})
    recipe["accumulate"] = parts * int(recipe.get("accumulate", 1))
    return replace(request, inputs={**request.inputs, **inputs}, batch=None, dims={}, recipe=recipe)


def _update_as_ready(question: Question, asked: Asked) -> Iterator[dict[str, Any]]:
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
    if why:
        yield {"lever": "update_as_ready", "why": why}
        return
    try:
        yield _reached(question, changed, asked, 1)
    except (BadGraph, BadRequest) as error:
        yield {"lever": "update_as_ready", "why": str(error).splitlines()[0]}


def _reached(question: Question, request: Request, asked: Asked, parts: int) -> dict[str, Any]:
    """What the planner reaches under the lever's request, within the budget of the question."""
    budget = None if question.budget_bytes is None else Budget(bytes=question.budget_bytes)
    iterations = None if request.iterations is None else max(1, int(request.iterations * LEVER_PART))
    found = asked.solve(
        replace(
            request, budget=budget, fits=None, fraction_of="baseline", layout="none", execute="no", advise=False,
            advise_checkpoints=False, share_buffers=False, gradient_events=False, iterations=iterations,
            search_seconds=request.search_seconds * LEVER_PART,
        )
    )  # fmt: skip
    problem = resolved(found.question.lowered.problem, found.plan.choices)
    ticks = problem.cost[found.plan.order]
    once = int(ticks[problem.phase[found.plan.order] == UPDATE].sum())
    seconds = (parts * (int(ticks.sum()) - once) + once) * problem.tick
    peak = found.question.count.counted(found.plan.score.peak_bytes)
    limit = question.memory_bytes if question.budget_bytes in (None, 0) else question.budget_bytes
    base = question.baseline_cost * question.lowered.problem.tick
    lever = "update_as_ready" if parts == 1 else "micro_batches"
    return {
        "lever": lever,
        "parts": parts,
        "peak_bytes": peak,
        "seconds": seconds,
        "overhead": seconds / base - 1 if base else 0.0,
        "fits": peak <= (limit or 0),
        "request": _said(request),
    }


def _said(request: Request) -> dict[str, Any]:
    """The fields to ask for the same with."""
    said: dict[str, Any] = {}
    if request.inputs:
        said["inputs"] = {name: list(shape) for name, shape in request.inputs.items()}
    if request.recipe:
        said["recipe"] = dict(request.recipe)
    if request.phases:
        said["phases"] = request.phases
    return said


def _batch(graph: Graph) -> int:
    """The leading length that all inputs with a shape have; 1 where there is none."""
    types: list[Any] = [graph.values[v].type for v in graph.inputs]
    leads = {type.shape[0] for type in types if type is not None and type.shape}
    return int(leads.pop()) if len(leads) == 1 and None not in types else 1
