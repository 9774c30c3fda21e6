"""Packings within a capacity, by depth-first search over canonical packings: no item can be pushed down.

In a canonical packing each item stands on the bottom or on another item. The search takes an item below which no
remaining item fits, and puts it at its lowest offset. If that fails, the item lies on top of another remaining item,
and its lowest offset is raised accordingly. Lowest offsets are also raised by which item can be lowest in a section. A
branch is pruned when the items of a section, stacked from their lowest offsets, exceed the capacity. Parts that do not
overlap in time fail independently: backtracking skips decisions in other parts. Of equal items the first lies lower.

The next item is chosen in one of two ways: the lowest of all, or the lowest in the section with the most failures per
spare byte. Both are tried under several ranks, with growing work limits. Failure counts carry over from one search to
the next with decay, and searches of the second kind are short and many.

Sources: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023
(canonical solutions, section inference, temporal decomposition, ranks). Carlier and Pinson, "An algorithm for solving
the job-shop problem", Management Science 35, 1989 (inference from heads on one machine).
Boussemart, Hemery, Lecoutre and Sais, "Boosting systematic search by weighting constraints", ECAI 2004.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice

import numpy as np

from planner.layout.canonical_kernels import (
    ANY_SECTION,
    DEPTH,
    FAILED_SECTION,
    INFEASIBLE,
    KERNELS,
    LEFT,
    MAX_PROPAGATE_ALL,
    PACKED,
    WORK,
    WORK_LIMIT,
    Items,
    SearchState,
)
from planner.layout.storages import Storages
from planner.problem.columns import sum_over_intervals

# Sort keys of the ranks, in the order they are tried; larger values first.
RANKS = (
    ("total", "width", "area"),
    ("total", "area", "width"),
    ("width", "total", "area"),
    ("area", "width", "total"),
    ("width", "area", "total"),
    ("size", "width", "total"),
)
# Ranks that each round after the first adds: by total, then by size^a * duration^(1 - a), for values of a spread over
# [0, 1] ever more densely, as multiples of the golden ratio are.
MIXED_RANKS, GOLDEN_RATIO = 8, (1 + 5**0.5) / 2
# Maximum storages: the search stores the remaining items at every depth, O(r²) memory.
MAX_STORAGES = 3_000
# Section visits: of a first-round search, per pair of storages, enough to place all of them; and between two polls of
# `stop`. A billion take about two seconds.
FIRST_WORK, SLICE = 50, 20_000_000
# The first round ends when the gap between the largest failed capacity and the best arena is below this fraction
# (1 / FINEST_GAP) of the lower bound; each later round halves the fraction.
FINEST_GAP = 250


@dataclass(frozen=True, eq=False, slots=True)
class Packing:
    """Storages over sections, the periods of locally maximal memory. A shrinking storage counts in full to its end."""

    begin: np.ndarray  # int64[r]  first section
    end: np.ndarray  # int64[r]  half-open
    size: np.ndarray  # int64[r]  bytes
    duration: np.ndarray  # int64[r]  as in `Storages`
    equal_before: np.ndarray  # int64[r]  the previous equal storage, or -1
    sections: int
    failures: dict[int, np.ndarray]  # capacity -> int64[sections]: decaying failure counts
    section_visits: np.ndarray  # int64[1]  section visits so far

    @staticmethod
    def of(storages: Storages) -> Packing:
        """The packing problem of the storages."""
        points = np.unique(np.concatenate([storages.start, storages.stop]))
        # Memory is locally maximal between two points only if a storage starts at the first and one ends at the second.
        is_peak = np.isin(points[:-1], storages.start) & np.isin(points[1:], storages.stop)
        number = np.concatenate([[0], np.cumsum(is_peak)])
        begin, end = (number[np.searchsorted(points, at)] for at in (storages.start, storages.stop))
        equal_before = _equal_items(begin, end, storages.size)
        return Packing(
            begin, end, storages.size, storages.duration, equal_before, int(number[-1]), {}, np.zeros(1, np.int64)
        )

    def profile(self) -> np.ndarray:
        """int64[sections]: live bytes."""
        return sum_over_intervals(self.begin, self.end, self.size, self.sections)

    def ranks(self) -> list[np.ndarray]:
        """int64[r] each: ranks by the keys of `RANKS`."""
        width = self.end - self.begin
        keys = {"size": self.size, "width": width, "area": width * self.size.astype(float), "total": self.total()}
        return [_ranked(*(keys[name] for name in names)) for names in RANKS]

    def mixed_ranks(self) -> Iterator[np.ndarray]:
        """int64[r] each, without end: ranks by total, then by size and duration in ever other proportions."""
        total, size, duration = self.total(), np.log(np.maximum(self.size, 1)), np.log(self.duration)
        for k in count(1):
            share = k * GOLDEN_RATIO % 1
            yield _ranked(total, share * size + (1 - share) * duration)

    def total(self) -> np.ndarray:
        """int64[r]: the most live bytes in a section of each storage."""
        profile = self.profile()
        return np.array([profile[a:b].max(initial=0) for a, b in zip(self.begin, self.end, strict=True)], np.int64)

    def within(
        self, capacity: int, rank: np.ndarray, choice: int, work: int, stop: Callable[[], bool]
    ) -> tuple[int, np.ndarray]:
        """(search result, offsets int64[r] if PACKED) of one search; `stop` is polled between slices of work."""
        r, sections = len(self.size), self.sections
        failures = self.failures.setdefault(capacity, np.zeros(sections, np.int64))
        failures[:] = failures // 2 + 1
        items = Items(self.begin, self.end, self.size, rank, self.equal_before)
        state = SearchState(
            np.zeros((r + 1, r), np.int64),
            np.zeros((r + 1, r), np.int64),
            np.zeros((r + 1, 4), np.int64),
            np.zeros((3, sections), np.int64),
            np.zeros(sections + 1, np.int64),
            failures,
            np.array([0, 0, sections, 0], np.int64),
        )
        state.left[0], state.levels[0, LEFT] = np.arange(r), r
        status, pack_items = WORK_LIMIT, KERNELS.compiled()["pack"]
        while status == WORK_LIMIT and work > 0 and not stop():
            state.counters[WORK] = min(work, SLICE)
            work -= SLICE
            self.section_visits[0] += state.counters[WORK]
            status = pack_items(items, state, choice, capacity)
            self.section_visits[0] -= state.counters[WORK]
        return int(status), state.least[state.counters[DEPTH]]

    def by_any(
        self,
        capacity: int,
        ranks: Sequence[np.ndarray],
        mixed: Iterable[np.ndarray],
        work: int,
        stop: Callable[[], bool],
    ) -> tuple[int, np.ndarray]:
        """(search result, offsets) of the first search that completes; about `work` for each rank and choice."""
        status, offset = WORK_LIMIT, self.size
        for rank, choice, part in search_schedule(ranks, mixed, work):
            status, offset = self.within(capacity, rank, choice, part, stop)
            if status != WORK_LIMIT or stop():
                break
        return status, offset


def search_schedule(
    ranks: Sequence[np.ndarray], mixed: Iterable[np.ndarray], work: int
) -> Iterator[tuple[np.ndarray, int, int]]:
    """(rank, choice, work) of the searches: long ones by lowest item, many short ones by failed section.

    Ranks of `mixed` are searched by lowest item only.
    """
    turns, short = cycle(ranks), FIRST_WORK * len(ranks[0]) ** 2
    for rank in ranks:
        yield rank, ANY_SECTION, work
        if len(rank) <= MAX_PROPAGATE_ALL:
            yield from ((next(turns), FAILED_SECTION, short) for _ in range(work // short))
    yield from ((rank, ANY_SECTION, work) for rank in mixed)


def _ranked(*keys: np.ndarray) -> np.ndarray:
    """int64[r]: the place of each item when sorted by falling keys, the first of which counts most."""
    rank = np.empty(len(keys[0]), np.int64)
    rank[np.lexsort([-key for key in reversed(keys)])] = np.arange(len(rank))
    return rank


def _equal_items(*columns: np.ndarray) -> np.ndarray:
    """int64[r]: the previous row with equal columns, or -1."""
    order = np.lexsort(columns)  # stable: equal rows keep their order
    same = np.all([column[order[1:]] == column[order[:-1]] for column in columns], axis=0)
    equal_before = np.full(len(order), -1, np.int64)
    equal_before[order[1:][same]] = order[:-1][same]
    return equal_before


def shrinking_packings(
    storages: Storages, best_bytes: int, rounds: int, stop: Callable[[], bool], max_section_visits: float = math.inf
) -> Iterator[np.ndarray]:
    """Offsets with ever smaller arenas, all below `best_bytes`; empty if none is found.

    A round bisects between the lower bound and the best arena; each search has four times the work of the round before,
    those at the lower bound a round ahead of the others. `stop` is polled before every search and during long ones, and
    ends all of them, as do `max_section_visits` section visits in total.
    """
    if not 0 < len(storages.size) <= MAX_STORAGES:
        return
    packing = Packing.of(storages)
    need = low = int(packing.profile().max())  # `low`: lower bound on the arena
    ranks, unit = packing.ranks(), int(np.gcd.reduce(storages.size))
    more, mixed = packing.mixed_ranks(), list[np.ndarray]()
    work = bound_work = FIRST_WORK * len(storages.size) ** 2
    finest = FINEST_GAP

    def over() -> bool:
        return bool(packing.section_visits[0] > max_section_visits) or stop()

    for _ in range(rounds):
        if best_bytes <= low:
            return
        failed, capacity = low - unit, low
        while failed < capacity < best_bytes and not over():
            status, offset = packing.by_any(capacity, ranks, mixed, bound_work if capacity == low else work, over)
            if status == PACKED:
                best_bytes = int((offset + storages.size).max())
                yield offset
            else:
                failed = capacity
            if status == INFEASIBLE:
                low = capacity + unit
            enough = best_bytes - failed <= max(unit, need // finest)
            capacity = failed if enough else (failed + best_bytes) // 2 // unit * unit
        work, bound_work, finest = bound_work, 4 * bound_work, 2 * finest
        mixed = list(islice(more, MIXED_RANKS))


def packing_within(storages: Storages, capacity: int, stop: Callable[[], bool]) -> np.ndarray | None:
    """Offsets with an arena of at most `capacity` bytes; None if the searches until `stop` find none, or prove it."""
    if not 0 < len(storages.size) <= MAX_STORAGES:
        return None
    packing, unit = Packing.of(storages), int(np.gcd.reduce(storages.size))
    if int(packing.profile().max()) > capacity:
        return None
    ranks, work = packing.ranks(), FIRST_WORK * len(storages.size) ** 2
    more, mixed = packing.mixed_ranks(), list[np.ndarray]()
    while not stop():
        status, offset = packing.by_any(capacity // unit * unit, ranks, mixed, work, stop)
        if status != WORK_LIMIT:
            return offset if status == PACKED else None
        work *= 4
        mixed = list(islice(more, MIXED_RANKS))
    return None
