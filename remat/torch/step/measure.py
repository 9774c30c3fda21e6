"""Seconds and workspace of each op of a step, measured: every distinct call runs a few times on made-up data.

Needs the memory of one op at a time, so a step that does not fit the device is measured as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from remat.torch.step.aot import allocations, outside_of_tracing
from remat.torch.step.joint import Joint, storage_of, tensors_of

RUNS = 3  # timed runs of a call; the fastest counts
#: Ops that read a buffer whose content only the library that filled it knows; made-up data takes the process down.
OPAQUE = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
Call = Callable[[], Any]


def measured_costs(joint: Joint) -> dict[str, dict[str, Any]]:
    """The `cost` of tasks by name: seconds and bytes of workspace of one run on the device of its tensors.

    An op that fails on made-up data, communicates, writes to its inputs or reads an opaque buffer is left out.
    """
    calls: dict[str, Call] = {}
    named: dict[str, str] = {}
    for task in joint.tasks:
        if not isinstance(task.target, torch._ops.OpOverload) or task.target._schema.is_mutable:
            continue
        opaque = task.target._schema.name.partition("::")[2].startswith(OPAQUE)
        if task.target.namespace in ("aten", "prims") and not opaque:
            key = named[task.name] = _signature(task)
            if key not in calls:
                calls[key] = _call(task)
    devices = sorted({t.device.index or 0 for task in joint.tasks for t in tensors_of(task) if t.is_cuda})
    with outside_of_tracing(), torch.random.fork_rng(devices), torch.no_grad():
        seconds = {key: _seconds(call) for key, call in calls.items()}
        able = {key: call for key, call in calls.items() if seconds[key] is not None}
        workspaces = allocations(able)
    costs = {key: {"seconds": seconds[key], "workspace_bytes": workspaces[key]} for key in able}
    return {name: costs[key] for name, key in named.items() if key in costs}


def workspaces(calls: Mapping[str, Callable[[], Call]]) -> dict[str, int]:
    """Bytes of workspace of each call; one that fails on made-up data is left out."""
    with outside_of_tracing(), torch.random.fork_rng([]), torch.no_grad():
        return allocations({key: make for key, make in calls.items() if _seconds(make) is not None})


def _signature(task: fx.Node) -> str:
    """Equal for calls that take the same time: op, shapes, strides, element types and numbers."""

    def described(node: fx.Node) -> Any:
        return tuple((tuple(t.shape), t.stride(), t.dtype, str(t.device)) for t in tensors_of(node))

    return str((task.target, fx.map_arg(task.args, described), fx.map_arg(task.kwargs, described)))


def _call(task: fx.Node) -> Call:
    def call() -> Any:
        made: dict[int, torch.Tensor] = {}
        args, kwargs = (
            fx.map_arg(given, lambda node: _example(node.meta["val"], made)) for given in (task.args, task.kwargs)
        )
        return lambda: task.target(*args, **kwargs)

    return call


def _example(value: Any, made: dict[int, torch.Tensor]) -> Any:
    """A tensor like a fake one: fractions, index 0, or true; views of one storage share one."""
    if not isinstance(value, torch.Tensor):
        return value
    key = storage_of(value)
    if key not in made:
        count = value.untyped_storage().nbytes() // value.element_size()
        made[key] = torch.zeros(count, dtype=value.dtype, device=value.device)
        if value.dtype.is_floating_point:
            made[key].uniform_(0.1, 1.0)
        elif value.dtype == torch.bool:
            made[key].fill_(True)
    return made[key].as_strided(value.shape, value.stride(), value.storage_offset())


def _seconds(make: Call) -> float | None:
    """Seconds of the fastest of some runs; None if the op does not take made-up data."""
    try:
        call = make()
        _synchronized(call)
        best = float("inf")
        for _ in range(RUNS):
            began = time.perf_counter()
            _synchronized(call)
            best = min(best, time.perf_counter() - began)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return None
    return best


def _synchronized(call: Call) -> None:
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
