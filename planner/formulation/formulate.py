"""What a request asks of a graph, as a question in the planner's terms."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from graph.analysis.cost import DeviceProfile, resolve_device
from graph.cancellation import GRACE_CHECKS, cancellation_scope, unless_cancelled
from graph.formats.readers import load
from graph.ir import Graph, producers
from graph.limits import Limits, ShapeOverrides
from graph.recurrent import step_value_names
from planner.body_plans.body_alternatives import with_body_plans
from planner.errors import BadRequest, Finding
from planner.formulation.formulation import Formulation, formulate_lowered
from planner.formulation.training_graph import training_graph
from planner.lowering.lower import BodyAlternatives, LoweredGraph, lower
from planner.request.field_parsers import MAX_FINDINGS
from planner.request.plan_request import Request
from planner.request.target_runtime import runtime_named


def formulate(
    source: Graph, request: Request, groups: tuple[BodyAlternatives, ...] = (), cancel: threading.Event | None = None
) -> Formulation:
    """The columns of the graph, and the goal in the planner's terms; `groups` are body plans that are known.

    A set `cancel` leaves bodies as they stand, and where even the columns take long it raises Stopped.
    """
    device = _device(request.device, "device")
    known, unknown = _checkpoints(source, request)
    keep = _ids(source, request.keep, "keep")
    again = _recompute_ids(source, _ids(source, _outside_steps(source, request.recompute), "recompute"), keep)
    runtime = runtime_named(request.runtime)
    with cancellation_scope(cancel, GRACE_CHECKS):
        lowered = lower(
            source, device, runtime, checkpoints=_ids(source, known, "checkpoints"), keep=keep, recompute=again
        )
    fits = _device(request.fits, "fits").memory_bytes if isinstance(request.fits, str) else request.fits
    if request.planner != "recurrent":
        planned = partial(with_body_plans, device=device, runtime=runtime, known=groups)
        lowered = unless_cancelled(None if groups else cancel, planned, lowered)
    question = formulate_lowered(lowered, request, source.order_is_given, device.memory_bytes, fits, cancel)
    notes = []
    if unknown:
        notes.append(f"checkpoints the graph does not have are left out: {', '.join(unknown[:5])}")
    if once := _not_repeatable(lowered, again):
        notes.append(f"asked for again, and made by nodes that run once: {', '.join(once[:5])}")
    return replace(question, warnings=(*question.warnings, *notes))


def with_smaller_batch(
    model: bytes | Graph,
    forward: Graph,
    request: Request,
    limits: Limits | None,
    batch: int,
    groups: tuple[BodyAlternatives, ...] = (),
) -> Formulation | None:
    """The same question about the model with its batch cut down, its bodies planned as `groups` say where they fit.

    None for a model that has no batch. Chunks of a loss get as many rows each.
    """
    batch = -(-batch // request.loss_chunks) * request.loss_chunks
    types = {forward.values[v].name: forward.values[v].type for v in forward.inputs}
    inputs = {name: (batch, *type.shape[1:]) for name, type in types.items() if type is not None and type.shape}
    if isinstance(model, Graph) or not inputs:
        return None
    cut = load(model, limits, ShapeOverrides({**request.inputs, **inputs}, None, request.dims))
    return formulate(training_graph(model, cut, request)[0], replace(request, budget=None, fits=None), groups)


def _device(given: str | Mapping[str, Any], field: str) -> DeviceProfile:
    try:
        return resolve_device(given)
    except ValueError as error:
        raise BadRequest.one("bad_device", field, str(error), "a device", "see `remat devices`") from None


def _outside_steps(source: Graph, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that are not inside the step of a recurrent net, which follows them by its body."""
    inside = step_value_names(source) if names else set()
    there = {value.name for value in source.values} if inside else set()
    return tuple(name for name in names if name not in inside or name in there)


def _checkpoints(source: Graph, request: Request) -> tuple[tuple[str, ...], list[str]]:
    """The checkpoints to keep, and those asked for that the graph does not have, where that is no error.

    Where they are asked about and none are named, they are those the document lists.
    """
    names = request.checkpoints
    if not names and (request.planner == "segments" or request.advise_checkpoints):
        listed = source.annotations.get("checkpoints", ())
        names = tuple(str(name) for name in listed) if isinstance(listed, list | tuple) else ()
    elif request.unknown_checkpoints == "error":
        return names, []
    there = {value.name for value in source.values} if names else set()
    return tuple(name for name in names if name in there), [name for name in names if name not in there]


def _recompute_ids(graph: Graph, values: list[int], keep: list[int]) -> list[int]:
    """The values that are to be made again. Raises BadRequest where that means nothing."""
    producer, findings = producers(graph) if values else [], list[Finding]()
    for v in dict.fromkeys(values):
        name = repr(graph.values[v].name)[:80]
        if producer[v] < 0:
            found = f"{name}, which no node makes"
            findings.append(Finding("never_made", "recompute", found, "values that nodes make", "leave it out"))
        elif v in keep:
            found, remedy = f"{name}, which keep names too", "leave it out of one of them"
            findings.append(Finding("conflicting_values", "recompute", found, "values of one of both", remedy))
    if findings:
        raise BadRequest(findings[:MAX_FINDINGS])
    return values


def _not_repeatable(lowered: LoweredGraph, values: list[int]) -> list[str]:
    """Names of those values whose nodes the planner runs once, whatever is asked for."""
    producer, repeatable = producers(lowered.graph) if values else [], lowered.problem.repeatable()
    tasks = [(v, lowered.node_task[producer[v]]) for v in dict.fromkeys(values)]
    return [lowered.graph.values[v].name for v, task in tasks if task >= 0 and not repeatable[task]]


def _ids(graph: Graph, names: tuple[str, ...], field: str) -> list[int]:
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
