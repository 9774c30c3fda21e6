"""The simulated caching allocator follows PyTorch's rules, and never loses or shares a byte."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layout.caching_allocator import MIB, Block, CachingAllocator, OutOfMemory


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of 1 MiB is not split off, and counts as allocated
        (21 * MIB + 1, 21 * MIB + 512 + MIB - 512, 22 * MIB),
    ],
)
def test_a_first_request_reserves_a_segment_of_its_size_class(size: int, allocated: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_the_smallest_free_block_is_taken_and_the_lowest_of_equals() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 30, 30, 50)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(25 * MIB).address == blocks[1].address
    assert allocator.reserved_bytes == 150 * MIB


def test_a_freed_block_merges_with_its_free_neighbours_in_the_segment() -> None:
    #   a │ b │ c │ rest        b is freed last: one block of 20 MiB
    allocator = CachingAllocator()
    a, b, c = (allocator.allocate(3 * MIB) for _ in range(3))
    for block in (a, c, b):
        allocator.free(block)
    assert allocator.allocate(20 * MIB).address == a.address
    assert allocator.reserved_bytes == 20 * MIB


def test_requests_of_a_pool_do_not_use_the_other() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(15 * MIB))
    allocator.allocate(1000)
    assert allocator.reserved_bytes == 18 * MIB


def test_fragments_of_segments_force_a_new_one_that_an_expandable_segment_does_not_need() -> None:
    #   12 MiB freed twice do not hold 24 MiB: segments do not merge, addresses of one expandable segment do
    plain, expandable = CachingAllocator(), CachingAllocator(expandable=True)
    for allocator in (plain, expandable):
        for block in [allocator.allocate(12 * MIB) for _ in range(2)]:
            allocator.free(block)
        allocator.allocate(24 * MIB)
    assert plain.reserved_bytes == 48 * MIB
    assert expandable.reserved_bytes == 40 * MIB  # two pages of 20 MiB


def test_expandable_segments_split_off_every_rest_and_grow_the_last_block() -> None:
    allocator = CachingAllocator(expandable=True)
    first = allocator.allocate(19 * MIB + 512)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (19 * MIB + 512, 20 * MIB)
    second = allocator.allocate(2 * MIB)  # the rest of the page and a new one
    assert second.address == first.address + first.size
    assert allocator.reserved_bytes == 40 * MIB


def test_a_full_device_releases_unused_segments_before_it_refuses() -> None:
    allocator = CachingAllocator(capacity=50 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(44 * MIB)
    assert (allocator.reserved_bytes, allocator.max_reserved_bytes) == (44 * MIB, 44 * MIB)
    with pytest.raises(OutOfMemory, match="beside 46137344 allocated of 52428800"):
        allocator.allocate(7 * MIB)


def test_a_full_device_unmaps_whole_pages_of_expandable_segments() -> None:
    #   pages │ 0 .. 20 │ 20 .. 40 │ 40 .. 60 │      a holds the first MiBs, c the last ones
    allocator = CachingAllocator(expandable=True, capacity=60 * MIB)
    a, b, c = allocator.allocate(5 * MIB), allocator.allocate(45 * MIB), allocator.allocate(5 * MIB)
    allocator.free(b)
    allocator.release_unused()
    assert allocator.reserved_bytes == 40 * MIB
    assert allocator.allocate(14 * MIB).address == a.address + a.size  # the rest of the first page is still free
    allocator.free(c)


requests = st.lists(
    st.one_of(
        st.integers(1, 3000).map(lambda size: ("allocate", size)),
        st.integers(MIB // 2, 30 * MIB).map(lambda size: ("allocate", size)),
        st.integers(0, 100).map(lambda which: ("free", which)),
    ),
    max_size=60,
)


@given(requests, st.booleans(), st.sampled_from([None, 64 * MIB]))
def test_no_byte_is_lost_or_shared(steps: list[tuple[str, int]], expandable: bool, capacity: int | None) -> None:
    allocator = CachingAllocator(expandable=expandable, capacity=capacity)
    held: list[Block] = []
    for action, number in steps:
        if action == "free":
            if held:
                allocator.free(held.pop(number % len(held)))
        else:
            try:
                block = allocator.allocate(number)
            except OutOfMemory:
                assert capacity is not None
                continue
            assert block.size >= number
            held.append(block)
        check(allocator, held)
    for block in held:
        allocator.free(block)
    check(allocator, [])
    allocator.release_unused()
    assert allocator.reserved_bytes == 0


def check(allocator: CachingAllocator, held: list[Block]) -> None:
    """Blocks in use do not overlap, and all mapped blocks are the reserved bytes."""
    ordered = sorted(held, key=lambda block: block.address)
    assert all(a.address + a.size <= b.address for a, b in pairwise(ordered))
    pools: tuple[Any, ...] = (allocator._small, allocator._large)
    free = [block for pool in pools for block in pool.block_at.values()]
    assert sorted(block.key for block in free) == sorted(key for pool in pools for key in pool.free)
    assert sum(block.size for block in held) == allocator.allocated_bytes
    assert sum(block.size for block in (*held, *free)) == allocator.reserved_bytes <= allocator.max_reserved_bytes
    assert all(block.is_mapped and not block.is_allocated for block in free)
    for block in (*held, *free):
        if block.after is not None:
            assert block.after.before is block and block.address + block.size == block.after.address
            merges = not block.is_allocated and not block.after.is_allocated and block.after.is_mapped
            assert not merges, "two free blocks side by side"
