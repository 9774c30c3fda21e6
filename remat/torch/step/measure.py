"""Seconds and workspace of each op of a step, measured.

    seconds      in a real step, where one can be run; else each distinct call alone, on made-up data
    workspace    of each distinct call alone, on made-up data

Alone, a call needs the memory of one op at a time, so a step that does not fit the device is measured as well.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from remat.torch.step.aot import allocations, outside_of_tracing
from remat.torch.step.joint import Joint, storage_of, tensors_of
from remat.torch.step.timing import Inputs, NotTimed, seconds_in_step

RUNS = 3  # timed runs of a call alone; the fastest counts
IN_STEP = "in a real step"
#: Ops that read a buffer whose content only the library that filled it knows; made-up data takes the process down.
OPAQUE = ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
Call = Callable[[], Any]


def measured_costs(joint: Joint, inputs: Inputs | None) -> tuple[dict[str, dict[str, Any]], str]:
    """The `cost` of tasks by name, and how their times were measured: `IN_STEP`, or why each op ran alone.

    Without `inputs`, the step is one of Inductor, whose kernels compute several ops.

    Ops with equal arguments have one cost; in a step, their mean. Ops of other packages have none unless they ran in a
    step, and no workspace have ops that fail on made-up data, write to inputs or read an opaque buffer.
    """
    signatures = {task.name: _signature(task) for task in joint.tasks}
    calls: dict[str, Call] = {}
    for task in joint.tasks:
        if not isinstance(task.target, torch._ops.OpOverload) or task.target._schema.is_mutable:
            continue
        opaque = task.target._schema.name.partition("::")[2].startswith(OPAQUE)
        if task.target.namespace in ("aten", "prims") and not opaque:
            calls.setdefault(signatures[task.name], _call(task))
    devices = sorted({t.device.index or 0 for task in joint.tasks for t in tensors_of(task) if t.is_cuda})
    with outside_of_tracing(), torch.random.fork_rng(devices), torch.no_grad():
        alone = {key: seconds for key, call in calls.items() if (seconds := _seconds(call)) is not None}
        workspaces = allocations({key: calls[key] for key in alone})
    costs: dict[str, dict[str, Any]] = {
        key: {"seconds": seconds, "workspace_bytes": workspaces[key]} for key, seconds in alone.items()
    }
    how = IN_STEP
    try:
        if inputs is None:
            raise NotTimed("Inductor computes several of them in one kernel")
        in_step = defaultdict(list)
        for name, seconds in seconds_in_step(joint, inputs).items():
            if name in signatures:
                in_step[signatures[name]].append(seconds)
        for key, times in in_step.items():
            costs.setdefault(key, {})["seconds"] = statistics.mean(times)
    except NotTimed as reason:
        how = str(reason)
    return {name: costs[key] for name, key in signatures.items() if key in costs}, how


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
