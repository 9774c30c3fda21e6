"""Peak of an order in one backward pass; see `liveness.py` for the semantics and `jit.py` for kernels."""

from __future__ import annotations

from typing import Annotated, Any

from planner.problem.columns import DEVICE
from planner.problem.jit import Column, Kernels, Row

# Read-only columns of a problem.
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
        if live[buffer] == 1:
            held += device_bytes(buffer, size, space, always)
    for step in range(len(order) - 1, -1, -1):
        task = order[step]
        needed = held + workspace[task]
        for entry in range(write_pointer[task], write_pointer[task + 1]):
            buffer = writes[entry]
            if live[buffer] == 0:
                needed += device_bytes(buffer, size, space, always)
            elif not always[buffer]:
                held -= device_bytes(buffer, size, space, always)
                live[buffer] = 0
        for entry in range(read_pointer[task], read_pointer[task + 1]):
            buffer = reads[entry]
            if live[buffer] == 0 and not always[buffer]:
                live[buffer], ends[buffer] = 1, step
                held += device_bytes(buffer, size, space, always)
                needed += device_bytes(buffer, size, space, always)
        for entry in range(write_pointer[task], write_pointer[task + 1]):
            if not always[writes[entry]]:
                needed -= takeover_bytes(writes[entry], step, take_pointer, takes, size, space, always, ends)
        highest = max(highest, needed)
    return UNDEFINED_PEAK if reads_before_write(live, has_writer, always) else int(highest)


def reads_before_write(live: Row, has_writer: Flags, always: Flags) -> int:
    """Number of buffers that a task writes and that are live before the first step."""
    count = 0
    for buffer in range(len(live)):
        count += live[buffer] == 1 and has_writer[buffer] and not always[buffer]
    return count


def device_bytes(buffer: int, size: Column, space: Bytes, always: Flags) -> int:
    """Bytes of a buffer that a step counts: 0 for residents and outside device memory."""
    return 0 if always[buffer] or space[buffer] != DEVICE else int(size[buffer])


def takeover_bytes(
    buffer: int, step: int, take_pointer: Column, takes: Column, size: Column, space: Bytes, always: Flags, ends: Row
) -> int:
    """Bytes of an output that reuses the storage of the first input that fits and is last read in this step."""
    for entry in range(take_pointer[buffer], take_pointer[buffer + 1]):
        source = takes[entry]
        if ends[source] == step and size[source] >= size[buffer] > 0 and space[source] == space[buffer]:
            ends[source] = -1
            return device_bytes(buffer, size, space, always)
    return 0


KERNELS = Kernels((peak_step_bytes,))
