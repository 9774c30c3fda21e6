"""Formulate: from a graph and a request to a formulation (columns, goal, accounting)."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

from graph.analysis import collectives
from graph.analysis.devices import resolve_device
from graph.autodiff.objective import Objective
from graph.cancellation import GRACE_CHECKS, cancellation_scope, unless_cancelled
from graph.ir import EMPTY, Effect, Graph, Node, producers
from graph.limits import Limits
from graph.recurrent import step_value_names
from planner.body_plans.body_alternatives import with_body_plans
from planner.errors import BadRequest, Finding
from planner.formulation.formulation import Formulation
from planner.formulation.goal_of_request import formulate_lowered
from planner.formulation.offloading import with_overlap
from planner.formulation.training_graph import load_model, training_graph
from planner.lowering.lower import lower
from planner.lowering.lowered_graph import BodyAlternatives, LoweredGraph
from planner.request.field_parsers import MAX_FINDINGS
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named


def formulate(
    source: Graph,
    request: Request,
    groups: tuple[BodyAlternatives, ...] = (),
    cancel: threading.Event | None = None,
    bodies: bool = True,
) -> Formulation:
    """Formulation of `request` on `source`. `groups` are body alternatives already known, such as of another size.

    Without `bodies`, and once `cancel` is set, bodies are not planned. Raises BadRequest for unknown names;
    CancellationError if `cancel` is set and lowering takes more than GRACE_CHECKS checks.
    """
    device = resolve_device(request.device)
    known, unknown = _checkpoints(source, request)
    keep = _ids(source, request.keep, "keep")
    recompute = _recompute_ids(source, _ids(source, _outside_steps(source, request.recompute), "recompute"), keep)
    runtime = runtime_named(request.runtime)
    with cancellation_scope(cancel, GRACE_CHECKS):
        lowered = lower(
            source,
            device,
            runtime,
            checkpoints=_ids(source, known, "checkpoints"),
            keep=keep,
            recompute=recompute,
            repeats_collectives=request.collectives == "repeated",
        )
    fits = resolve_device(request.fits).memory_bytes if isinstance(request.fits, str) else request.fits
    if bodies and request.planner != "recurrent":
        planned = partial(with_body_plans, device=device, runtime=runtime, known=groups)
        lowered = unless_cancelled(None if groups else cancel, planned, lowered)
    formulation = formulate_lowered(lowered, request, source.order_is_given, device.memory_bytes, fits, cancel)
    formulation = with_overlap(formulation, request)
    notes = collectives.warnings_of(source, device)
    if request.collectives == "repeated" and not any(map(_may_repeat_collective, source.nodes)):
        notes.append("collectives: not used, no collective outside of loops and branches may be recomputed")
    if unknown:
        notes.append(f"unknown checkpoints are ignored: {', '.join(unknown[:5])}")
    if once := _not_repeatable(lowered, recompute):
        notes.append(f"cannot be recomputed, because their nodes must run once: {', '.join(once[:5])}")
    return replace(formulation, warnings=(*formulation.warnings, *notes))


def with_smaller_batch(
    model: bytes | Graph,
    forward: Graph,
    request: Request,
    limits: Limits | None,
    batch: int,
    groups: tuple[BodyAlternatives, ...] = (),
) -> Formulation | None:
    """Formulation of the model with a smaller batch, reusing the body alternatives `groups` where they fit.

    `batch` is rounded up to a multiple of the loss chunks; it replaces the leading length of the first input, also in
    other inputs. None for a model without a batch or a graph in memory.
    """
    batch = -(-batch // request.loss_chunks) * request.loss_chunks
    types = {forward.values[v].name: forward.values[v].type for v in forward.inputs}
    shapes = {name: type.shape for name, type in types.items() if type is not None and type.shape}
    if isinstance(model, Graph) or not shapes:
        return None
    old = next(iter(shapes.values()))[0]
    inputs = {name: (batch if shape[0] == old else shape[0], *shape[1:]) for name, shape in shapes.items()}
    # The shapes of all inputs bind every dimension, so that `dims` would contradict the new batch.
    shaped = replace(request, inputs={**request.inputs, **inputs}, batch=None, dims=EMPTY)
    cut = load_model(model, shaped, limits)
    objectives: list[Objective] = []
    source, _ = training_graph(model, cut, request, objectives=objectives)
    formulation = formulate(source, replace(request, budget=None, fits=None), groups)
    return replace(formulation, objective=next(iter(objectives), None))


def _may_repeat_collective(node: Node) -> bool:
    return node.effect is Effect.COLLECTIVE and node.recompute != "never"


def _outside_steps(source: Graph, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names outside recurrent step bodies; names inside a body were applied to the body itself."""
    inside = step_value_names(source) if names else set()
    value_names = {value.name for value in source.values} if inside else set()
    return tuple(name for name in names if name not in inside or name in value_names)


def _checkpoints(source: Graph, request: Request) -> tuple[tuple[str, ...], list[str]]:
    """(checkpoints to keep, unknown checkpoints to warn about).

    If the request needs checkpoints and names none, the document's own list applies. With `unknown_checkpoints: error`
    unknown names stay in the first list, and the caller raises.
    """
    names = request.checkpoints
    if not names and (request.planner == "segments" or request.advise_checkpoints):
        listed = source.annotations.get("checkpoints", ())
        names = tuple(str(name) for name in listed) if isinstance(listed, list | tuple) else ()
    elif request.unknown_checkpoints == "error":
        return names, []
    value_names = {value.name for value in source.values} if names else set()
    return tuple(name for name in names if name in value_names), [name for name in names if name not in value_names]


def _recompute_ids(graph: Graph, values: list[int], keep: list[int]) -> list[int]:
    """Values to recompute, as given. Raises BadRequest for values without a producer, or also listed in `keep`."""
    producer, findings = producers(graph) if values else [], list[Finding]()
    for v in dict.fromkeys(values):
        name = repr(graph.values[v].name)[:80]
        if producer[v] < 0:
            found = f"{name}, which has no producing node"
            findings.append(Finding("never_made", "recompute", found, "values produced by nodes", "leave it out"))
        elif v in keep:
            found, remedy = f"{name}, which is also in keep", "remove it from one of them"
            findings.append(
                Finding("conflicting_values", "recompute", found, "values in only one of keep and recompute", remedy)
            )
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    return values


def _not_repeatable(lowered: LoweredGraph, values: list[int]) -> list[str]:
    """Names of values whose nodes must run exactly once."""
    producer, repeatable = producers(lowered.graph) if values else [], lowered.problem.repeatable()
    tasks = [(v, lowered.node_task[producer[v]]) for v in dict.fromkeys(values)]
    return [lowered.graph.values[v].name for v, task in tasks if task >= 0 and not repeatable[task]]


def _ids(graph: Graph, names: tuple[str, ...], field: str) -> list[int]:
    """Value ids of names. Raises BadRequest listing the unknown ones."""
    number = {value.name: v for v, value in enumerate(graph.values)} if names else {}
    if unknown := [name for name in names if name not in number]:
        raise BadRequest.one(
            "unknown_value",
            field,
            ", ".join(unknown[:5]),
            "names of values of the planned graph",
            "see `remat info` for the names",
        )
    return [number[name] for name in names]
