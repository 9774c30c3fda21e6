"""Requests of a plan to an allocator that chooses addresses itself, and what such allocators reserve for them.

Within a step a task allocates its outputs, then its workspace, which it returns first; inputs that it read last are
freed after it. What is there from the start is allocated before the first step.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from planner.layout.caching_allocator import CachingAllocator, OutOfMemory
from planner.layout.storages import is_live_throughout, storage_placement
from planner.problem.plan import Lifetimes

Handle = TypeVar("Handle")


class Allocator(Protocol, Generic[Handle]):
    """Chooses addresses request by request."""

    max_reserved_bytes: int

    def allocate(self, size: int) -> Handle: ...

    def free(self, block: Handle) -> None: ...


@dataclass(frozen=True, eq=False, slots=True)
class AllocationTrace:
    """Requests in order: `number` is a storage when it is allocated, and its complement `~storage` when it is freed."""

    sizes: list[int]  # bytes of each storage, above 0
    numbers: list[int]


def allocation_trace(lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray) -> AllocationTrace:
    """The requests of a plan. `size` is int64[m], bytes per buffer; `workspace` is int64[s], bytes per step.

    An output that takes over the storage of an input makes no request.
    """
    storages = storage_placement(lifetimes, size, workspace, 1).storages
    resident = size[lifetimes.buffer[is_live_throughout(lifetimes, len(workspace))]]
    resident = resident[resident > 0]
    first, owned = len(resident), len(storages.size) - int((workspace > 0).sum())
    count = len(storages.size)
    number = np.arange(first, first + count)
    is_workspace = np.arange(count) >= owned
    # (step, frees last, rank in the step) of each request; workspaces are allocated last and freed first.
    step = np.concatenate([storages.start, storages.stop - 1])
    frees = np.repeat([0, 1], count)
    rank = np.concatenate([is_workspace, ~is_workspace])
    order = np.lexsort((np.tile(number, 2), rank, frees, step))
    requests = np.concatenate([number, ~number])[order]
    return AllocationTrace([*resident.tolist(), *storages.size.tolist()], [*range(first), *requests.tolist()])


@dataclass(frozen=True, slots=True)
class Reservation:
    """What allocators reserve for one trace, in bytes."""

    allocated_bytes: int  # the most that blocks in use take in the caching allocator
    reserved_bytes: int  # the most that it reserves with the default settings
    expandable_reserved_bytes: int  # the same with `expandable_segments:True`
    first_fit_bytes: int  # the arena of an allocator that takes the lowest gap
    runs: bool  # whether the default settings serve every request within the capacity


def reservation(trace: AllocationTrace, capacity: int) -> Reservation:
    """Run the trace through the simulated allocators; `capacity` is in bytes."""
    caching, expandable, first_fit = CachingAllocator(), CachingAllocator(expandable=True), FirstFit()
    for allocator in (caching, expandable):
        replay(trace, allocator)
    replay(trace, first_fit)
    return Reservation(
        caching.max_allocated_bytes,
        caching.max_reserved_bytes,
        expandable.max_reserved_bytes,
        first_fit.max_reserved_bytes,
        caching.max_reserved_bytes <= capacity or _runs_within(trace, capacity),
    )


def _runs_within(trace: AllocationTrace, capacity: int) -> bool:
    """Whether the caching allocator serves the trace if it releases unused segments when the device is full."""
    try:
        replay(trace, CachingAllocator(capacity=capacity))
    except OutOfMemory:
        return False
    return True


def replay(trace: AllocationTrace, allocator: Allocator[Handle]) -> None:
    """Make all requests of a trace."""
    held: dict[int, Handle] = {}
    for number in trace.numbers:
        if number >= 0:
            held[number] = allocator.allocate(trace.sizes[number])
        else:
            allocator.free(held.pop(~number))


class FirstFit:
    """One arena without end: each request takes the lowest gap that holds it; neighbouring gaps merge."""

    def __init__(self) -> None:
        self.max_reserved_bytes = 0
        self._end = 0  # above it everything is free
        self._gaps: list[tuple[int, int]] = []  # (address, bytes), ascending, none beside another or the end

    def allocate(self, size: int) -> tuple[int, int]:
        """(address, bytes) of the request."""
        for index, (address, gap) in enumerate(self._gaps):
            if gap >= size:
                self._gaps[index : index + 1] = [(address + size, gap - size)] if gap > size else []
                return address, size
        self._end += size
        self.max_reserved_bytes = max(self.max_reserved_bytes, self._end)
        return self._end - size, size

    def free(self, block: tuple[int, int]) -> None:
        """Return the bytes of a request."""
        address, size = block
        at = bisect.bisect_left(self._gaps, block)
        if at < len(self._gaps) and self._gaps[at][0] == address + size:
            size += self._gaps.pop(at)[1]
        if at and sum(self._gaps[at - 1]) == address:
            before = self._gaps.pop(at - 1)
            address, size, at = before[0], size + before[1], at - 1
        if address + size == self._end:
            self._end = address
        else:
            self._gaps.insert(at, (address, size))
