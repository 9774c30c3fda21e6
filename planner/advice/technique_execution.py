"""Equivalence check of a technique: run the changed and the original step on the same inputs and compare.

Loss and gradients are compared, without the update; micro-batches run one after the other and their results are
averaged. Partial sums round differently, so equal means within the tolerance of the dtype
(`graph/execution/compare_outputs.py`), not bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graph.analysis.cost import device_named, seconds_of
from graph.errors import BadGraph, CannotExecute
from graph.execution import compare_outputs
from graph.ir import Graph
from graph.limits import Limits
from planner.errors import BadRequest
from planner.formulation.execution_check import (
    DIFFERENT,
    EQUAL,
    MAX_RUN_BYTES,
    MAX_RUN_SECONDS,
    NOT_EXECUTED,
    ExecutionResult,
)
from planner.formulation.training_graph import load_model, training_graph
from planner.request.plan_request import Request


def check_step_equivalence(
    model: bytes | Graph, before: Request, after: Request, passes: int, limits: Limits | None
) -> dict[str, str]:
    """`status`, `how` and `why` of the comparison. One step equals `passes` runs of the graph of `after`."""
    if before.execute == "no":
        return _status(NOT_EXECUTED, why="not asked for")
    if _is_same(before, after):
        return _status(NOT_EXECUTED, why="the graph computes the same values in another order")
    try:
        for batch in (0, max(passes, after.loss_chunks)):
            pair = [_step(model, request, limits, batch, k) for request, k in ((before, 1), (after, passes))]
            if before.execute == "yes" or (_is_quick(pair[0], 1) and _is_quick(pair[1], passes)):
                return _compared(pair[0], pair[1], passes, before.seed, batch)
            if isinstance(model, Graph):
                break
    except (BadGraph, BadRequest, CannotExecute) as error:
        return _status(NOT_EXECUTED, why=str(error).splitlines()[0])
    why = f"predicted run exceeds {MAX_RUN_SECONDS:.0f} s or {MAX_RUN_BYTES >> 30} GiB"
    return _status(NOT_EXECUTED, why=why)


def with_rewrite_check(
    result: ExecutionResult, model: bytes | Graph, request: Request, limits: Limits | None
) -> ExecutionResult:
    """Add the comparison with the graph before the request's rewrites (chunked loss, fused attention), if any."""
    plain = replace(request, loss_chunks=1, fuse_attention=False)
    if result.status != EQUAL or _is_same(plain, request):
        return result
    found = check_step_equivalence(model, plain, request, 1, limits)
    if found["status"] == DIFFERENT:
        return ExecutionResult(DIFFERENT, found["how"], found["why"])
    outcome = found["how"] if found["status"] == EQUAL else f"{found['status']}, {found['why']}"
    return replace(result, how=f"{result.how}; against the unchanged step: {outcome}")


def _is_same(before: Request, after: Request) -> bool:
    """Whether both requests compute the same values, apart from the order of updates."""
    alike = (before.inputs, before.loss_chunks, before.fuse_attention)
    return alike == (after.inputs, after.loss_chunks, after.fuse_attention)


def _step(model: bytes | Graph, request: Request, limits: Limits | None, batch: int, passes: int) -> Graph:
    """Step without update; with `batch`, for one of `passes` parts of a batch of that length."""
    differentiate = request.differentiate
    if isinstance(differentiate, Mapping):
        differentiate = {name: value for name, value in differentiate.items() if name != "update"}
    request = replace(request, recipe=None, differentiate=differentiate)
    if batch:
        request = replace(request, inputs=_with_lead(model, request, limits, batch // passes), batch=None, dims={})
    return training_graph(model, load_model(model, request, limits), request)[0]


def _with_lead(model: bytes | Graph, request: Request, limits: Limits | None, lead: int) -> dict[str, tuple[int, ...]]:
    """Input shapes with leading length `lead` instead of the batch (the leading length of the first input)."""
    forward = load_model(model, request, limits)
    shapes = {
        forward.values[v].name: type.shape for v in forward.inputs if (type := forward.values[v].type) is not None
    }
    batch = next((shape[0] for shape in shapes.values() if shape), 0)
    return {name: (lead, *shape[1:]) if shape[:1] == (batch,) else shape for name, shape in shapes.items()}


def _is_quick(graph: Graph, passes: int) -> bool:
    reference = device_named("cpu-reference")
    seconds = sum(seconds_of(graph, node, reference) for node in graph.nodes if node.cost.seconds is None)
    return passes * seconds <= MAX_RUN_SECONDS and sum(value.nbytes for value in graph.values) <= MAX_RUN_BYTES


def _compared(plain: Graph, changed: Graph, passes: int, seed: int, batch: int) -> dict[str, str]:
    """Run both graphs on the same feeds and compare the results; averages over the micro-batches."""
    feeds = compare_outputs.sample_feeds(plain, seed)
    expected = compare_outputs.run_results(plain, feeds, seed)
    if passes == 1:
        found = compare_outputs.run_results(changed, feeds, seed)
    else:
        runs = [compare_outputs.run_results(changed, part, seed) for part in _parts(changed, feeds, passes)]
        same_shape = [name for name, array in runs[0].items() if array.shape == expected[name].shape]
        found = {name: _mean([run[name] for run in runs]) for name in same_shape}
    worst = compare_outputs.worst_discrepancy(found, expected)
    cut = f", batch cut to {batch}" if batch else ""
    furthest = f"largest difference: {worst.name}, {worst.error:.1e} of its largest element"
    if worst.agrees:
        return _status(EQUAL, f"within {worst.tolerance:g}{cut}; {furthest}")
    return _status(DIFFERENT, f"against the unchanged step{cut}", furthest)


def _mean(arrays: list[np.ndarray]) -> np.ndarray:
    return np.asarray(np.sum(arrays, axis=0, dtype=np.float64) / len(arrays)).astype(arrays[0].dtype)


def _parts(graph: Graph, feeds: compare_outputs.Results, passes: int) -> list[dict[str, np.ndarray]]:
    """Feeds of each micro-batch: its rows of the batched inputs, and all of every other array."""
    lengths: dict[str, Any] = {}
    for v in graph.inputs:
        type = graph.values[v].type
        if type is not None and type.shape and feeds[graph.values[v].name].shape != type.shape:
            lengths[graph.values[v].name] = type.shape[0]
    return [
        {name: a[i * lengths[name] : (i + 1) * lengths[name]] if name in lengths else a for name, a in feeds.items()}
        for i in range(passes)
    ]


def _status(status: str, how: str = "", why: str = "") -> dict[str, str]:
    return {"status": status, "how": how, "why": why}
