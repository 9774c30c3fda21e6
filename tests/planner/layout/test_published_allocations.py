"""The simulated caching allocator against numbers that PyTorch's tests assert and that users measured on GPUs.

Each case names its source, makes the requests of that source and compares what the source states, byte for byte; what a
source measured in MiB is compared in MiB. A private pool of a CUDA graph or of `MemPool` starts empty and follows the
same rules: a simulated allocator stands for one pool. Expected numbers never come from the simulator.

Sources:
- test/test_cuda.py of PyTorch at 000e43cdff99f30291164c1f2e90133f19fa83fb, the test by name;
- aten/src/ATen/test/cuda_allocatorTraceTracker_test.cpp;
- pytorch/pytorch issue 69526 (default settings);
- pytorch/pytorch pull request 193400 and issue 123548: PyTorch 2.12 on an RX 9070 XT, expandable segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from planner.layout.caching_allocator import MIB, Block, CachingAllocator, OutOfMemory

FREE = 0  # size of a request that returns the block of its name
RELEASE_UNUSED = ("", FREE)  # torch.cuda.empty_cache

Request = tuple[str, int]  # name of the block, bytes


@dataclass(frozen=True, slots=True)
class Case:
    """What a source states after a sequence of requests; None where it states nothing."""

    source: str
    requests: list[Request]
    expandable: bool = False
    reserved: int | None = None  # bytes
    allocated: int | None = None  # bytes of blocks in use
    segments: int | None = None
    live: int | None = None  # blocks in use


@dataclass(slots=True)
class Session:
    """An allocator and the blocks in use by name."""

    allocator: CachingAllocator
    blocks: dict[str, Block] = field(default_factory=dict)

    def make(self, requests: list[Request]) -> None:
        for name, size in requests:
            if (name, size) == RELEASE_UNUSED:
                self.allocator.release_unused()
            elif size == FREE:
                self.allocator.free(self.blocks.pop(name))
            else:
                self.blocks[name] = self.allocator.allocate(size)

    def segments(self) -> int:
        """Ranges of memory without a gap, as a snapshot of PyTorch lists them."""
        return sum(block.before is None or not block.before.is_mapped for block in self._mapped())

    def _mapped(self) -> Iterator[Block]:
        yield from self.blocks.values()
        for pool in (self.allocator._small, self.allocator._large):
            yield from pool.block_at.values()


def graph_capture(size: int) -> list[Request]:
    """b = a.clone(), then five times b = b.clone() + 1, in a pool of its own; b5 stays."""
    requests = [("b0", size)]
    for step in range(5):
        requests += [("clone", size), (f"b{step + 1}", size), ("clone", FREE), (f"b{step}", FREE)]
    return requests


def sums_of_clones(first: int, steps: int, size: int) -> list[Request]:
    """`steps` times b = (b.clone() + 1) + (b.clone() + 1), from b{first} on."""
    requests: list[Request] = []
    for step in range(first, first + steps):
        for name in ("x", "y"):
            requests += [("clone", size), (name, size), ("clone", FREE)]
        requests += [(f"b{step + 1}", size), ("x", FREE), ("y", FREE)]
        if step > first:  # what the sums start from belongs to another pool
            requests.append((f"b{step}", FREE))
    return requests


SUMS_OF_TWENTY = [("a", 20 * MIB), ("b", 20 * MIB), ("c", 20 * MIB), ("a", FREE), ("b", FREE), ("c", FREE)]
FRAMES = 512 * 3 * 224 * 224 * 4  # float32

CAPTURED = "test_graph_memory_stats_and_use_result_after_destroy_graph"
#   bytes per tensor, segments, reserved while the graph lives, after it is deleted; the same two if expandable
CAPTURES = [
    (512, 1, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB),
    (MIB, 2, 4 * MIB, 2 * MIB, 4 * MIB, 2 * MIB),
    (MIB + 512, 1, 20 * MIB, 20 * MIB, 20 * MIB, 20 * MIB),
    (10 * MIB - 512, 2, 40 * MIB, 20 * MIB, 40 * MIB, 40 * MIB),
    (10 * MIB + 512, 3, 36 * MIB, 12 * MIB, 40 * MIB, 20 * MIB),
]


def captures() -> Iterator[Case]:
    """Of a captured graph: segments, reserved bytes, blocks in use and their bytes; then after its pool is released."""
    for size, segments, held, left, expandable_held, expandable_left in CAPTURES:
        during, after = graph_capture(size), [*graph_capture(size), RELEASE_UNUSED]
        yield Case(CAPTURED, during, False, held, size, segments, 1)
        yield Case(CAPTURED, after, False, left, size, 1, 1)
        yield Case(CAPTURED, during, True, expandable_held, size, None, 1)
        yield Case(CAPTURED, after, True, expandable_left, size, None, 1)


CASES = [
    *captures(),
    Case("test_memory_stats", [("tmp", 256 * 4)], allocated=1024),
    Case("test_memory_stats", [("tmp", 256 * 4), ("tmp", FREE), RELEASE_UNUSED], allocated=0),
    Case("test_allocator_settings", [("x", 84 * MIB)], allocated=84 * MIB),
    Case("test_mempool_with_allocator", [("out_0", MIB)], segments=1),
    Case("test_mempool_with_allocator", [("out_0", MIB), ("out_1", MIB)], segments=1),
    Case("test_mempool_with_allocator", [("out_0", MIB), ("out_1", MIB), ("out_2", MIB)], segments=2),
    Case("test_mempool_no_split", [("a", 4 * MIB)], reserved=20 * MIB),  # said in a comment
    # Fewer segments than the two blocks of a pool that does not split.
    Case("test_mempool_no_split", [("a", 4 * MIB), ("b", 4 * MIB)], segments=1),
    Case("test_nested_mempool", [("first", 20 * MIB), ("second", 20 * MIB)], segments=2),
    Case("test_mempool_expandable", [("second", MIB)], True, segments=1),
    Case("test_mempool_ctx_multithread", [("out1", MIB), ("out", MIB)], allocated=2 * MIB, segments=1),
    Case("test_mempool_ctx_multithread", [("out", MIB), ("out", FREE)], allocated=0, segments=1),
    Case("test_allocate_in_thread_to_pool", [("foo", 16), ("foo", FREE)], segments=1),
    Case("test_allocate_in_thread_to_pool", [("foo", 16), ("foo", FREE), *10 * SUMS_OF_TWENTY], segments=4),
    Case("test_allocate_in_thread_to_pool", [("foo", 16), ("foo", FREE), *10 * SUMS_OF_TWENTY], True, segments=2),
    Case("cuda_allocatorTraceTracker_test", [("buffer", 500 * MIB), ("buffer", FREE)], segments=1),
    Case("cuda_allocatorTraceTracker_test", [("buffer", 500 * MIB), ("buffer", FREE), RELEASE_UNUSED], segments=0),
    # Weight and bias of a convolution from 3 to 28 channels, and frames: 296 MB reserved, 294 allocated, rounded.
    Case("issue 69526", [("weight", 28 * 27 * 4), ("bias", 28 * 4), ("frames", FRAMES)], reserved=296 * MIB),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.source}-{'expandable' if case.expandable else 'default'}"
)
def test_requests_of_a_source_give_its_numbers(case: Case) -> None:
    session = Session(CachingAllocator(expandable=case.expandable))
    session.make(case.requests)
    measured = {
        "reserved": session.allocator.reserved_bytes,
        "allocated": session.allocator.allocated_bytes,
        "segments": session.segments(),
        "live": len(session.blocks),
    }
    stated = {name: value for name in measured if (value := getattr(case, name)) is not None}
    assert stated
    assert {name: measured[name] for name in stated} == stated


def test_two_graphs_that_share_a_pool_reserve_one_small_segment_less() -> None:
    """test_graph_two_successive: 2,097,152 bytes between graphs that share a pool and graphs that don't."""
    first, second = sums_of_clones(0, 5, 4000), sums_of_clones(5, 5, 4000)
    alone, after_it, shared = (Session(CachingAllocator()) for _ in range(3))
    alone.make(first)
    after_it.make(second)
    shared.make([*first, *second])
    separate = alone.allocator.reserved_bytes + after_it.allocator.reserved_bytes
    assert separate - shared.allocator.reserved_bytes == 2097152


def test_a_request_takes_the_block_that_was_freed_before_it() -> None:
    """test_graph_three_successive: `f` overwrites what `c` held, which is seen in the values of `e`."""
    session = Session(CachingAllocator())
    session.make([(name, 4000) for name in "bcde"])
    freed = session.blocks["c"].address
    session.make([("c", FREE), ("f", 4000)])
    assert session.blocks["f"].address == freed


def test_smaller_requests_take_the_start_of_a_freed_segment() -> None:
    """test_mempool_limited_memory_with_allocator: b, c and e at one address; 30 MiB more than the pool has fail."""
    session = Session(CachingAllocator(capacity=40 * MIB))
    session.make([("b", 40 * MIB)])
    address = session.blocks["b"].address
    session.make([("b", FREE), ("c", 30 * MIB)])
    assert session.blocks["c"].address == address
    with pytest.raises(OutOfMemory):
        session.make([("d", 30 * MIB)])
    session.make([("c", FREE), ("e", 20 * MIB)])
    assert session.blocks["e"].address == address


def test_two_requests_share_a_freed_segment_on_a_full_device() -> None:
    """test_deleted_mempool_not_used_on_oom: 40 MiB of memory, all in a freed segment, hold 20 and 20 MiB."""
    session = Session(CachingAllocator(capacity=40 * MIB))
    session.make([("a", 40 * MIB), ("a", FREE), ("b", 20 * MIB), ("c", 20 * MIB)])
    assert session.allocator.reserved_bytes == 40 * MIB


def guarded_pair(cycle: int) -> list[Request]:
    """A and B, and a small block behind them that stays; pull request 193400."""
    return [(f"A{cycle}", 91 * MIB), (f"B{cycle}", 91 * MIB // 2), (f"guard{cycle}", 2 * MIB)]


MEASURED_RESERVED_MIB = {0: 220, 20: 2980, 40: 5760, 60: 8520, 80: 11300, 100: 14060}  # by cycle
MEASURED_ALLOCATED_MIB = {0: 66, 20: 106, 40: 146, 60: 186, 80: 226, 100: 266}


def test_an_expandable_segment_grows_by_the_pages_measured_on_a_gpu() -> None:
    """With max_split_size_mb:128 no request takes the 136.5 MiB that A and B leave, so they are never freed here."""
    session = Session(CachingAllocator(expandable=True))
    session.make([("resident", 64 * MIB)])
    reserved = {}
    for cycle in range(max(MEASURED_RESERVED_MIB) + 1):
        session.make(guarded_pair(cycle))
        reserved[cycle] = session.allocator.reserved_bytes // MIB
    assert {cycle: reserved[cycle] for cycle in MEASURED_RESERVED_MIB} == MEASURED_RESERVED_MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_without_a_limit_on_splits_freed_pairs_are_used_again(expandable: bool) -> None:
    """The controls of that measurement stay below 500 MiB, expandable or not."""
    session = Session(CachingAllocator(expandable=expandable))
    session.make([("resident", 64 * MIB)])
    for cycle in range(max(MEASURED_RESERVED_MIB) + 1):
        session.make([*guarded_pair(cycle), (f"A{cycle}", FREE), (f"B{cycle}", FREE)])
    assert session.allocator.max_reserved_bytes < 500 * MIB


def test_blocks_in_use_are_the_bytes_measured_on_a_gpu() -> None:
    """Of the same measurement: what is in use after a cycle does not depend on the limit on splits."""
    session = Session(CachingAllocator(expandable=True))
    session.make([("resident", 64 * MIB)])
    allocated = {}
    for cycle in range(max(MEASURED_ALLOCATED_MIB) + 1):
        session.make([*guarded_pair(cycle), (f"A{cycle}", FREE), (f"B{cycle}", FREE)])
        allocated[cycle] = session.allocator.allocated_bytes // MIB
    assert {cycle: allocated[cycle] for cycle in MEASURED_ALLOCATED_MIB} == MEASURED_ALLOCATED_MIB
