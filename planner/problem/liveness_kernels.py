"""Peak of an order in one backward pass; see `liveness.py` for the semantics and `jit.py` for kernels."""

from __future__ import annotations

from typing import Annotated, Any

from planner.problem.columns import DEVICE
from planner.problem.jit import Kernels, Row

# Read-only columns of a problem.
Column = Annotated[Any, "int64", 1, "readonly"]
Bytes = Annotated[Any, "int8", 1, "readonly"]
Flags = Annotated[Any, "boolean", 1, "readonly"]
#: Result of `peak_step_bytes` for an order with a read before its write, or without the write of an output.
UNDEFINED_PEAK = -1


def peak_step_bytes(
    order: Column,
    read_pointer: Column,
    reads: Column,
    write_pointer: Column,
    writes: Column,
    take_pointer: Column,
    takes: Column,
    size: Column,
    space: Bytes,
    has_writer: Flags,
    always: Flags,
    workspace: Column,
    live: Row,
    ends: Row,
) -> int:
    """Largest bytes of a step, residents excluded; UNDEFINED_PEAK if the order is illegal.

    Steps run from last to first. `live` (int64[m]) is 1 while a later step reads the content, initially for
    buffers held at the end; `ends` (int64[m], all -1) receives the step of the last read. `always` marks residents,
    which are not counted; `has_writer` marks buffers that a task writes.
    """
    held = highest = 0
    for buffer in range(len(live)):
        if live[buffer] == 1 and space[buffer] == DEVICE:
            held += size[buffer]
    for step in range(len(order) - 1, -1, -1):
        task = order[step]
        needed = held + workspace[task]
        for entry in range(write_pointer[task], write_pointer[task + 1]):
            buffer = writes[entry]
            if always[buffer]:
                continue
            if live[buffer] == 0:
                needed += size[buffer] if space[buffer] == DEVICE else 0
            else:
                held -= size[buffer] if space[buffer] == DEVICE else 0
            live[buffer] = 0
        for entry in range(read_pointer[task], read_pointer[task + 1]):
            buffer = reads[entry]
            if live[buffer] == 0 and not always[buffer]:
                live[buffer], ends[buffer] = 1, step
                if space[buffer] == DEVICE:
                    held += size[buffer]
                    needed += size[buffer]
        for entry in range(write_pointer[task], write_pointer[task + 1]):
            buffer = writes[entry]
            for wanted in range(take_pointer[buffer], take_pointer[buffer + 1]):
                source = takes[wanted]
                fits = size[source] >= size[buffer] > 0 and space[source] == space[buffer]
                if fits and ends[source] == step and not always[buffer]:
                    ends[source] = -1
                    needed -= size[buffer] if space[buffer] == DEVICE else 0
                    break
        highest = max(highest, needed)
    for buffer in range(len(live)):
        if live[buffer] == 1 and has_writer[buffer] and not always[buffer]:
            return UNDEFINED_PEAK
    return int(highest)


KERNELS = Kernels((peak_step_bytes,))
