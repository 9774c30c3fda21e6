"""Other techniques that lower the peak, each with a full, checked plan.

    technique         change                                                         requires
    micro_batches     batch in k parts, gradients accumulated, one update            a graph differentiated here
    chunked_loss      rows of the cross-entropy in k chunks, forward and backward    a graph differentiated here
    fused_attention   products around a softmax as one node that saves no scores     no backward part in the model
    update_as_ready   update each parameter as soon as its gradient is complete      a recipe, or update nodes
    offload           keep, recompute or copy values to the host, beside compute     a budget, a known bandwidth

A technique changes the graph or the request, which is then planned like any other. If the graph changes, it is
executed, and loss and gradients are compared with those of the unchanged step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from graph.analysis.cost import resolve_device
from graph.errors import BadGraph
from graph.ir import Graph, Phase
from graph.limits import Limits
from planner.advice import technique_execution
from planner.errors import BadRequest
from planner.formulation import offloading
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.formulation.proven_bound import with_lower_bound
from planner.formulation.training_graph import load_model, training_graph
from planner.problem import UPDATE
from planner.problem.alternatives import resolve_choices
from planner.problem.plan import Plan
from planner.request.budget import Budget
from planner.request.plan_request import Request

#: Micro-batches and loss chunks, tried in order until the plan fits; share of the search time for each technique.
BATCH_PARTS, LOSS_CHUNKS, TECHNIQUE_PART = (2, 4, 8), (4, 16), 0.25
NOT_DIFFERENTIATED = "the graph is not differentiated here; plan its forward part with a loss"
ALREADY_APPLIED = "already applied"


@dataclass(frozen=True, eq=False, slots=True)
class TechniqueContext:
    """A planned model and its request."""

    model: bytes | Graph
    forward: Graph
    source: Graph
    request: Request
    limits: Limits | None
    cancel: threading.Event

    @property
    def is_differentiated_here(self) -> bool:
        """Whether the backward part was derived from the model, not read with it."""
        return any(node.phase is not Phase.FORWARD for node in self.source.nodes) and all(
            node.phase is Phase.FORWARD for node in self.forward.nodes
        )


@dataclass(frozen=True, slots=True)
class _Technique:
    """One change of the request. A training step runs the planned graph `passes` times, and its update once."""

    name: str
    request: Request
    parts: int = 1
    passes: int = 1


class _Memory(NamedTuple):
    """Bytes of a technique's plan, as reported."""

    peak_bytes: int
    needed_bytes: int  # with addresses, where the runtime uses them


def technique_rows(formulation: Formulation, context: TechniqueContext) -> Iterator[dict[str, Any]]:
    """One row for each technique: its figures, or `why` it does not apply."""
    for name, variants in TECHNIQUES.items():
        found = variants(formulation, context)
        yield {"lever": name, "why": found} if isinstance(found, str) else _first_that_fits(formulation, context, found)
    yield _offloaded(formulation, context)


def _first_that_fits(formulation: Formulation, context: TechniqueContext, variants: list[_Technique]) -> dict[str, Any]:
    """Row of the first variant that fits, else of the last one tried; a variant that fails to build ends the list."""
    row: dict[str, Any] | None = None
    for variant in variants:
        try:
            row = _planned_row(formulation, variant, context)
        except (BadGraph, BadRequest) as error:
            row = row or {"lever": variant.name, "why": str(error).splitlines()[0]}
            break
        if row["fits"]:
            break
    assert row is not None
    if "why" not in row:
        variant = next(variant for variant in variants if variant.parts == row["parts"])
        row["executed"] = technique_execution.check_step_equivalence(
            context.model, context.request, variant.request, variant.passes, context.limits
        )
    return row


def _micro_batches(formulation: Formulation, context: TechniqueContext) -> list[_Technique] | str:
    """Variants with the batch in parts and accumulated gradients."""
    batch = _batch(context.forward)
    parts = [k for k in BATCH_PARTS if batch % k == 0 and batch > k]
    if not context.is_differentiated_here:
        return NOT_DIFFERENTIATED
    if isinstance(context.model, Graph):
        return "the model is a graph in memory; plan its document"
    if not parts:
        return "the inputs have no common leading length that can be divided"
    return [_Technique("micro_batches", _in_parts(context, batch, k), k, k) for k in parts]


def _in_parts(context: TechniqueContext, batch: int, parts: int) -> Request:
    """Request for one micro-batch of gradient accumulation."""
    graph, request = context.forward, context.request
    shapes = {graph.values[v].name: graph.values[v].type.shape for v in graph.inputs}  # type: ignore[union-attr]
    inputs = {
        name: (batch // parts, *shape[1:]) if shape and shape[0] == batch else shape for name, shape in shapes.items()
    }
    recipe = dict(request.recipe or {})
    recipe["accumulate"] = parts * int(recipe.get("accumulate", 1))
    return replace(request, inputs={**request.inputs, **inputs}, batch=None, dims={}, recipe=recipe)


def _chunked_loss(formulation: Formulation, context: TechniqueContext) -> list[_Technique] | str:
    """Variants with the rows of the loss in chunks."""
    if not context.is_differentiated_here:
        return NOT_DIFFERENTIATED
    if context.request.loss_chunks > 1:
        return ALREADY_APPLIED
    return [_Technique("chunked_loss", replace(context.request, loss_chunks=k), k) for k in LOSS_CHUNKS]


def _fused_attention(formulation: Formulation, context: TechniqueContext) -> list[_Technique] | str:
    """Variant with every attention as one node."""
    if context.request.fuse_attention:
        return ALREADY_APPLIED
    if any(node.phase is not Phase.FORWARD for node in context.forward.nodes):
        return "the model contains a backward part; plan its forward part"
    return [_Technique("fused_attention", replace(context.request, fuse_attention=True))]


def _update_as_ready(formulation: Formulation, context: TechniqueContext) -> list[_Technique] | str:
    """Variant with each parameter updated after its last read, in the backward part."""
    request = context.request
    recipe = dict(request.recipe or {})
    updates = any(node.phase is Phase.UPDATE for node in context.source.nodes)
    if recipe.get("optimizer", "none") != "none":
        changed = replace(request, recipe={**recipe, "update": "as_ready"})
        done = recipe.get("update") == "as_ready"
        why = ALREADY_APPLIED if done else "clipping needs every gradient first" if recipe.get("clip") else ""
    else:
        changed = replace(request, phases="mixed")
        why = "" if updates and formulation.goal.strict_phases else "there is no update to move"
    return why or [_Technique("update_as_ready", changed)]


#: Name -> function that returns the variants, the mildest first, or why the technique does not apply.
TECHNIQUES: dict[str, Callable[[Formulation, TechniqueContext], list[_Technique] | str]] = {
    "micro_batches": _micro_batches,
    "chunked_loss": _chunked_loss,
    "fused_attention": _fused_attention,
    "update_as_ready": _update_as_ready,
}


def _planned_row(formulation: Formulation, variant: _Technique, context: TechniqueContext) -> dict[str, Any]:
    """Row of a variant, planned within the budget of the original request."""
    request = variant.request
    budget = None if formulation.budget_bytes is None else Budget(bytes=formulation.budget_bytes)
    iterations = _part_of(request.iterations)
    changed, plan = _planned(
        context,
        replace(
            request,
            budget=budget,
            fits=None,
            fraction_of="baseline",
            layout="fast" if formulation.places else "none",
            execute="no",
            advise=False,
            advise_checkpoints=False,
            share_buffers=False,
            gradient_events=False,
            iterations=iterations,
            search_seconds=request.search_seconds * TECHNIQUE_PART,
        ),
    )
    problem = resolve_choices(changed.lowered.problem, plan.choices)
    ticks = problem.cost[plan.order]
    once = int(ticks[problem.phase[plan.order] == UPDATE].sum())
    seconds = (variant.passes * (int(ticks.sum()) - once) + once) * problem.tick
    needed = _Memory(changed.counted_peak(plan), changed.needed_with_addresses(plan))
    return _row(formulation, variant.name, variant.parts, needed, seconds, _request_fields(request))


def _planned(context: TechniqueContext, request: Request) -> tuple[Formulation, Plan]:
    """The model under another request, and its checked plan, without layout or rewrite."""
    source, _ = training_graph(context.model, load_model(context.model, request, context.limits), request)
    formulation = with_lower_bound(formulate(source, request), quick=True)
    plan = formulation.search(request.planner, formulation.monitor(cancel=context.cancel))
    formulation.check(plan)
    return formulation, plan


def _part_of(iterations: int | None) -> int | None:
    return None if iterations is None else max(1, int(iterations * TECHNIQUE_PART))


def _row(
    formulation: Formulation, name: str, parts: int, memory: _Memory, seconds: float, request: dict[str, Any]
) -> dict[str, Any]:
    """Row of a technique: its memory and time, compared with the baseline and the memory limit."""
    limit = formulation.memory_bytes if formulation.budget_bytes in (None, 0) else formulation.budget_bytes
    base = formulation.baseline_cost * formulation.lowered.problem.tick
    return {
        "lever": name,
        "parts": parts,
        **memory._asdict(),
        "seconds": seconds,
        "overhead": seconds / base - 1 if base else 0.0,
        "fits": memory.needed_bytes <= (limit or 0),
        "request": request,
    }


def _offloaded(formulation: Formulation, context: TechniqueContext) -> dict[str, Any]:
    """Row of `offload`: a plan of the unchanged graph with copies to the host and back, beside compute."""
    request, device = replace(context.request, offload=True), resolve_device(context.request.device)
    why = ALREADY_APPLIED if context.request.offload else offloading.why_no_copies(formulation, request)
    if not why and not device.host_bytes_per_second:
        why = f"no bandwidth between {device.name} and its host is known; name host_bandwidth in the device"
    if why:
        return {"lever": "offload", "why": why}
    goal = formulation.goal
    part = replace(goal, seconds=goal.seconds * TECHNIQUE_PART, iterations=_part_of(goal.iterations))
    formulation = replace(formulation, goal=part)
    monitor = formulation.monitor(cancel=context.cancel)
    monitor.seconds *= offloading.PLAIN_SHARE
    plain = formulation.placed(formulation.search(request.planner, monitor), request.layout)
    seconds = (1 - offloading.PLAIN_SHARE) * part.seconds
    found, plan, _ = offloading.with_copies_searched(formulation, plain, request, context.cancel, seconds)
    found.check(plan)
    if not (copied := offloading.copied_values(found)):
        return {"lever": "offload", "why": "no plan found uses a copy"}
    memory = _Memory(found.counted_peak(plan), found.needed_with_addresses(plan))
    row = _row(found, "offload", 1, memory, plan.score.cost * found.lowered.problem.tick, {"offload": True})
    why = "the graph computes the same values in another order; plan with offload to execute it"
    return row | {"executed": {"status": "not executed", "how": "", "why": why}, "offloaded": copied}


def _request_fields(request: Request) -> dict[str, Any]:
    """Wire fields that request the same technique."""
    fields: dict[str, Any] = {}
    if request.inputs:
        fields["inputs"] = {name: list(shape) for name, shape in request.inputs.items()}
    if request.recipe:
        fields["recipe"] = dict(request.recipe)
    if request.phases:
        fields["phases"] = request.phases
    if request.loss_chunks > 1:
        fields["loss_chunks"] = request.loss_chunks
    if request.fuse_attention:
        fields["fuse_attention"] = True
    return fields


def _batch(graph: Graph) -> int:
    """Common leading length of all inputs; 1 if there is none."""
    types: list[Any] = [graph.values[v].type for v in graph.inputs]
    leads = {type.shape[0] for type in types if type is not None and type.shape}
    return int(leads.pop()) if len(leads) == 1 and None not in types else 1
