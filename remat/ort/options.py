"""Options of ONNX Runtime under which a session has the order and the memory of a plan."""

from __future__ import annotations

import ctypes
import sys
import warnings
from typing import Any

from onnxruntime import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, SessionOptions

from remat.steps.errors import PlanNotKept

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc
_MMAP_BYTES = 64 * 1024

#: Option -> (its value for plans, the effect of another value).
_REQUIRED: dict[str, tuple[Any, str]] = {
    "execution_order": (ExecutionOrder.PRIORITY_BASED, "nodes do not run in the order of the plan"),
    "graph_optimization_level": (GraphOptimizationLevel.ORT_DISABLE_ALL, "optimizers fuse and move nodes"),
    "execution_mode": (ExecutionMode.ORT_SEQUENTIAL, "nodes run side by side"),
    "enable_mem_pattern": (False, "from the second run on, the bytes of a run are one block beside those of the first"),
    "enable_mem_reuse": (False, "a buffer waits for the next value of its size instead of being freed"),
    "enable_cpu_mem_arena": (False, "freed bytes stay in the arena, in pieces"),
}


def session_options() -> SessionOptions:
    """Options that run nodes in the order of the file and free values after their last use.

    Set others on them, such as `intra_op_num_threads`, and give them to `remat.ort.session`.
    """
    options = SessionOptions()
    for name, (value, _) in _REQUIRED.items():
        setattr(options, name, value)
    options.log_severity_level = 3  # errors; a state with a default content is a warning otherwise
    return options


def keeps_plan(options: SessionOptions) -> bool:
    """Whether a session follows the plan; if not, a `PlanNotKept` warning names each option that undoes it."""
    others = [
        f"{name}={getattr(given, 'name', given)} ({effect}; use {getattr(value, 'name', value)})"
        for name, (value, effect) in _REQUIRED.items()
        if (given := getattr(options, name)) != value
    ]
    if others:
        text = "options of the session undo the plan: " + "; ".join(others)
        warnings.warn(f"{text}. Start from remat.ort.session_options()", PlanNotKept, stacklevel=3)
    return not others


def return_freed_memory() -> None:
    """Make glibc return freed tensors to the system at once, for the whole process; nothing with another C library.

    By default it keeps blocks below a threshold that grows to 32 MiB with the sizes that are freed.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
