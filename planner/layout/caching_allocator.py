"""PyTorch's CUDA caching allocator, simulated: what a sequence of requests reserves on the device.

    request, up to 512 B steps ──▶ pool: up to 1 MiB, or more ──▶ smallest free block that holds it
                                                                   │ none
                       segment of 2 MiB, 20 MiB, or the request ◀──┘
                       in 2 MiB steps from 10 MiB on

A block that is larger than the request is split, a freed one merges with the free blocks beside it, and segments stay
reserved until the device is full. With expandable segments a pool is one range of addresses, mapped in pages of 2 MiB
(small) or 20 MiB.

Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13 with default settings, all requests on one stream. The driver
is assumed to return increasing addresses, which decide between free blocks of the same size.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

ROUNDING = 512
MIB = 1 << 20
MAX_SMALL = MIB  # the largest request of the small pool
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
MIN_OWN_SEGMENT = 10 * MIB  # requests from here on get a segment of their own ...
OWN_SEGMENT_ROUNDING = 2 * MIB  # ... in these steps
MAX_UNSPLIT = MIB  # a larger remainder of a large block is split off
ADDRESS_RANGE = LARGE_SEGMENT << 23  # bytes of an expandable segment where no capacity limits it


class OutOfMemory(Exception):
    """The device has no room for a request, even after all unused segments are released."""


@dataclass(eq=False, slots=True)
class Block:
    """A range of a segment; the blocks of a segment are linked by address."""

    pool: _Pool
    address: int
    size: int
    is_allocated: bool = False
    is_mapped: bool = True  # False: addresses of an expandable segment without memory
    before: Block | None = None
    after: Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Order of the free blocks of a pool."""
        return self.size, self.address


@dataclass(eq=False, slots=True)
class _Pool:
    """Free and unmapped blocks of one size class."""

    is_small: bool
    free: list[tuple[int, int]] = field(default_factory=list)  # keys, ascending
    block_at: dict[int, Block] = field(default_factory=dict)  # address -> free block
    unmapped: dict[int, Block] = field(default_factory=dict)  # address -> block

    @property
    def page(self) -> int:
        """Bytes that an expandable segment maps at once."""
        return SMALL_SEGMENT if self.is_small else LARGE_SEGMENT

    def insert(self, block: Block) -> None:
        bisect.insort(self.free, block.key)
        self.block_at[block.address] = block

    def remove(self, block: Block) -> None:
        del self.free[bisect.bisect_left(self.free, block.key)]
        del self.block_at[block.address]

    def best_fit(self, size: int, expandable: bool) -> Block | None:
        """The smallest free block of at least `size` bytes, the lowest address among equals.

        A block that can grow counts with the bytes that it can grow to, so that it is used last.
        """
        start = bisect.bisect_left(self.free, (size, -1))
        if start == len(self.free):
            return None
        found = self.block_at[self.free[start][1]]
        if expandable:
            for index in range(start + 1, len(self.free)):
                candidate = self.block_at[self.free[index][1]]
                if _growable_size(candidate) >= _growable_size(found):
                    break
                found = candidate
        return found


def _growable_size(block: Block) -> int:
    """Bytes of the block with the unmapped addresses behind it."""
    after = block.after
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


class CachingAllocator:
    """Allocate and free blocks; the maxima are what PyTorch calls `max_memory_allocated` and `max_memory_reserved`.

    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(3_000_000)
    >>> allocator.allocated_bytes, allocator.reserved_bytes
    (3000320, 20971520)
    >>> allocator.free(block)
    >>> allocator.allocated_bytes, allocator.reserved_bytes
    (0, 20971520)
    """

    def __init__(self, *, expandable: bool = False, capacity: int | None = None):
        """`expandable`: the setting `expandable_segments`. `capacity`: bytes of the device; None: no limit."""
        self.expandable, self.capacity = expandable, capacity
        self.allocated_bytes = self.max_allocated_bytes = 0
        self.reserved_bytes = self.max_reserved_bytes = 0
        self._small, self._large = _Pool(True), _Pool(False)
        self._next_address = 0

    def allocate(self, size: int) -> Block:
        """A block of at least `size` > 0 bytes. Raises OutOfMemory."""
        size = -(-size // ROUNDING) * ROUNDING
        pool = self._small if size <= MAX_SMALL else self._large
        block = pool.best_fit(size, self.expandable)
        if block is not None:
            pool.remove(block)
        else:
            block = self._reserve(pool, size)
            if block is None:
                self.release_unused()
                block = self._reserve(pool, size)
            if block is None:
                raise OutOfMemory(f"{size:,} bytes beside {self.allocated_bytes} allocated of {self.capacity}")
        if self._splits(pool, block.size - size):
            self._split(block, size)
        block.is_allocated = True
        self.allocated_bytes += block.size
        self.max_allocated_bytes = max(self.max_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Return a block to its pool."""
        block.is_allocated = False
        self.allocated_bytes -= block.size
        self._merge_with_neighbours(block)
        block.pool.insert(block)

    def release_unused(self) -> None:
        """Return to the device what holds no allocation: whole segments, or whole pages of expandable ones."""
        for pool in (self._large, self._small):
            for block in [pool.block_at[address] for _, address in pool.free]:
                if self.expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size

    def _splits(self, pool: _Pool, rest: int) -> bool:
        """Whether so many bytes behind a request are split off."""
        return rest >= ROUNDING if pool.is_small or self.expandable else rest > MAX_UNSPLIT

    def _split(self, block: Block, size: int) -> None:
        """Shorten the block to `size` bytes; the rest becomes a free block."""
        rest = Block(block.pool, block.address + size, block.size - size, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.size, block.after = size, rest
        block.pool.insert(rest)

    def _merge_with_neighbours(self, block: Block) -> None:
        """Take up the neighbours that are free, and mapped or not as the block is; they leave their pool."""
        for other in (block.before, block.after):
            if other is None or other.is_allocated or other.is_mapped != block.is_mapped:
                continue
            if other.is_mapped:
                block.pool.remove(other)
            else:
                del block.pool.unmapped[other.address]
            if other is block.before:
                block.address, block.before = other.address, other.before
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = other.after
                if block.after is not None:
                    block.after.before = block
            block.size += other.size

    def _reserve(self, pool: _Pool, size: int) -> Block | None:
        """A block outside the pool from newly reserved memory; None if the device is full."""
        if self.expandable:
            return self._grow(pool, size)
        if pool.is_small:
            segment = SMALL_SEGMENT
        elif size < MIN_OWN_SEGMENT:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // OWN_SEGMENT_ROUNDING) * OWN_SEGMENT_ROUNDING
        if not self._take(segment):
            return None
        self._next_address += segment
        return Block(pool, self._next_address - segment, segment)

    def _take(self, size: int) -> bool:
        """Count bytes as reserved; False if the device is full."""
        if self.capacity is not None and self.reserved_bytes + size > self.capacity:
            return False
        self.reserved_bytes += size
        self.max_reserved_bytes = max(self.max_reserved_bytes, self.reserved_bytes)
        return True

    def _grow(self, pool: _Pool, size: int) -> Block | None:
        """A block of an expandable segment, outside the pool; None if the device is full."""
        block = self._growth_start(pool, size)
        if not block.is_mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None  # `_growth_start` counted its bytes
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after  # which took up the free block before it
        pool.remove(block)
        return block

    def _growth_start(self, pool: _Pool, size: int) -> Block:
        """The lowest block from which free and unmapped bytes reach `size`; of a new segment if there is none."""
        for address in sorted(pool.unmapped):
            block = pool.unmapped[address]
            if block.before is not None and not block.before.is_allocated:
                block = block.before
            if _free_bytes(block, size) >= size:
                return block
        least = max(size, ADDRESS_RANGE if self.capacity is None else self.capacity * 9 // 8)
        # Pages of both pools start at multiples of their size.
        segment = Block(pool, self._next_address, -(-least // LARGE_SEGMENT) * LARGE_SEGMENT, is_mapped=False)
        self._next_address += segment.size
        pool.unmapped[segment.address] = segment
        return segment

    def _map(self, block: Block, size: int) -> bool:
        """Map the first `size` bytes of an unmapped block in whole pages and put it into its pool; False if full."""
        pool = block.pool
        mapped = min(block.size, -(-size // pool.page) * pool.page)
        if not self._take(mapped):
            return False
        del pool.unmapped[block.address]
        if mapped < block.size:
            rest = Block(pool, block.address + mapped, block.size - mapped, False, False, block, block.after)
            if rest.after is not None:
                rest.after.before = rest
            block.size, block.after = mapped, rest
            pool.unmapped[rest.address] = rest
        block.is_mapped = True
        self._merge_with_neighbours(block)
        pool.insert(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Unmap the whole pages inside a free block; what lies before and behind them stays free."""
        pool, end = block.pool, block.address + block.size
        first, last = -(-block.address // pool.page) * pool.page, end // pool.page * pool.page
        if first >= last:
            return
        pool.remove(block)
        if first > block.address:
            head = Block(pool, block.address, first - block.address, before=block.before, after=block)
            if head.before is not None:
                head.before.after = head
            block.before = head
            pool.insert(head)
        if end > last:
            tail = Block(pool, last, end - last, before=block, after=block.after)
            if tail.after is not None:
                tail.after.before = tail
            block.after = tail
            pool.insert(tail)
        block.address, block.size, block.is_mapped = first, last - first, False
        self.reserved_bytes -= block.size
        self._merge_with_neighbours(block)
        if block.before is not None or block.after is not None:  # else the segment is gone
            pool.unmapped[block.address] = block


def _free_bytes(block: Block | None, enough: int) -> int:
    """Bytes of the block and the free and unmapped ones behind it, up to `enough`."""
    total = 0
    while block is not None and not block.is_allocated and total < enough:
        total, block = total + block.size, block.after
    return total
