"""Seconds of ops from a trace of PyTorch's profiler, for the nodes of a captured step.

    trace.json  ──▶  seconds by op and shapes of its tensors  ──▶  `cost` of the nodes with that op and those shapes

Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Call = tuple[str, tuple[tuple[int, ...], ...]]  # op without its overload, and the different shapes of its tensors

#: Ops of a recorded step that eager PyTorch runs under another name on a CPU.
EAGER_NAMES = {
    "aten::_native_batch_norm_legit_functional": "aten::native_batch_norm",
    "aten::native_dropout": "aten::dropout",
}
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def with_times(document: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """The document with the median seconds of each op in a trace; nodes whose op is not in it keep their cost.

    Parameters:
        document: From `capture`.
        path: A file of `profile.export_chrome_trace`, recorded with `record_shapes=True`.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is no such trace, has no shapes, or no op in it is an op of the step.
    """
    seconds = seconds_by_call(path)
    shapes = {value["name"]: tuple(value["shape"]) for value in document["values"]}
    states = {name for node in document["nodes"] if node["op"] == "generator::State" for name in node["outputs"]}
    nodes, found = [], 0
    for node in document["nodes"]:
        name = node["op"].partition(".")[0]
        call = _call(name, [shapes[value] for value in node["inputs"] if value not in states])
        taken = seconds.get(call, seconds.get((EAGER_NAMES.get(name, name), call[1])))
        if taken is not None and "cost" in node:
            found += 1
            workspace = {key: held for key, held in node["cost"].items() if key == "workspace_bytes"}
            node = {**node, "cost": {"seconds": taken, **workspace}}
        nodes.append(node)
    if not found:
        raise ValueError(f"{path}: no op of the trace is one of the step; profile steps of the same module and shapes")
    return {**document, "nodes": nodes}


def seconds_by_call(path: str | os.PathLike[str]) -> dict[Call, float]:
    """Median seconds of one call, by op and shapes: time of its kernels on a GPU, of the op itself on a CPU."""
    try:
        events = json.loads(Path(path).read_bytes())["traceEvents"]
        calls = [event for event in events if event.get("cat") == "cpu_op" and event["args"].get("Input Dims")]
        on_device = [event for event in events if event.get("cat") in ON_DEVICE]
        taken = _device_microseconds(calls, events, on_device) if on_device else [float(e["dur"]) for e in calls]
        found: dict[Call, list[float]] = {}
        for event, microseconds in zip(calls, taken, strict=True):
            found.setdefault(_call(event["name"], event["args"]["Input Dims"]), []).append(microseconds * 1e-6)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{path}: not a trace of PyTorch's profiler; write one with export_chrome_trace") from None
    if not found:
        raise ValueError(f"{path}: the trace has no shapes; record it with torch.profiler.profile(record_shapes=True)")
    return {call: statistics.median(seconds) for call, seconds in found.items()}


def _call(name: str, shapes: Sequence[Any]) -> Call:
    """Scalars, and shapes that came before, are left out: a node names a tensor that is read twice once."""
    return name, tuple(dict.fromkeys(tuple(shape) for shape in shapes if shape and isinstance(shape[0], int)))


def _device_microseconds(
    calls: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]], on_device: Sequence[Mapping[str, Any]]
) -> Iterator[float]:
    """Time of the kernels that each call and the ops inside it have started."""
    kernels: dict[int, float] = {}
    for event in on_device:
        number = event["args"].get("External id")
        kernels[number] = kernels.get(number, 0.0) + float(event["dur"])
    begins: dict[Any, list[float]] = {}  # of ops that have started kernels, by thread, ascending
    totals: dict[Any, list[float]] = {}  # time of the kernels of the ops before each
    for event in sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: e["ts"]):
        if (number := event["args"].get("External id")) in kernels:
            begins.setdefault(event["tid"], []).append(event["ts"])
            total = totals.setdefault(event["tid"], [0.0])
            total.append(total[-1] + kernels[number])
    for call in calls:
        own, total = begins.get(call["tid"], []), totals.get(call["tid"], [0.0])
        yield total[bisect_left(own, call["ts"] + call["dur"])] - total[bisect_left(own, call["ts"])]
