"""Requests of a plan to allocators: their order within a step, and what the allocators reserve."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.layout.allocation_trace import AllocationTrace, FirstFit, allocation_trace, replay, reservation
from planner.layout.caching_allocator import MIB
from planner.problem import RESIDENT, liveness
from tests.planner.drawn import problem_of


def traced(reads, writes, sizes, workspace, hold=None):
    problem = problem_of(reads, writes, size=sizes, workspace=workspace, hold=hold or [0] * len(sizes))
    order = np.arange(problem.tasks)
    return allocation_trace(liveness.lifetimes(problem, order), problem.size, problem.workspace[order])


def test_a_task_allocates_outputs_then_workspace_and_frees_workspace_then_inputs():
    #   a ──▶ b ──▶ c       b has a workspace of 9 bytes, c has no bytes
    trace = traced([[], [0], [1]], [[0], [1], [2]], [4, 5, 0], [0, 9, 0])
    names = {4: "a", 5: "b", 9: "w"}
    told = [("free " if n < 0 else "new ") + names[trace.sizes[~n if n < 0 else n]] for n in trace.numbers]
    assert told == ["new a", "new b", "new w", "free w", "free a", "free b"]


def test_residents_are_allocated_first_and_stay():
    trace = traced([[0]], [[1]], [7, 3], [0], [RESIDENT, 0])
    assert [trace.sizes[n] for n in trace.numbers if n >= 0] == [7, 3]
    assert [trace.sizes[~n] for n in trace.numbers if n < 0] == [3]


def test_a_plan_without_steps_or_bytes_makes_no_requests():
    assert traced([], [], [], []).numbers == []
    assert traced([[]], [[0]], [0], [0]).numbers == []


def test_reservations_of_a_chain_that_fragments_segments():
    #   two buffers of 12 MiB are freed before one of 24 MiB is requested
    trace = AllocationTrace([12 * MIB, 12 * MIB, 24 * MIB], [0, 1, ~0, ~1, 2, ~2])
    found = reservation(trace, 40 * MIB)
    assert found.allocated_bytes == found.first_fit_bytes == 24 * MIB
    assert (found.reserved_bytes, found.expandable_reserved_bytes) == (48 * MIB, 40 * MIB)
    assert found.runs  # the unused segments are released
    assert not reservation(trace, 23 * MIB).runs


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=40))
def test_first_fit_takes_the_lowest_gap(requests):
    allocator, used, held = FirstFit(), set(), []
    for size, which in requests:
        if which > 5 and held:
            address, old = held.pop(which % len(held))
            allocator.free((address, old))
            used -= set(range(address, address + old))
            continue
        address, got = allocator.allocate(size)
        lowest = next(a for a in range(1000) if not used & set(range(a, a + size)))
        assert (address, got) == (lowest, size)
        used |= set(range(address, address + size))
        held.append((address, size))
    replay(AllocationTrace([], []), allocator)
