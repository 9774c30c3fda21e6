"""Packings within a capacity, by depth-first search over those in which nothing can be pushed down.

What can be pushed down no further stands on the bottom or on something else. So a search takes an item below which
nothing that is left fits, and puts it as low as it can; when that fails, the item lies on top of another that is
left, and its lowest offset is raised to that. Offsets are raised as well where a section shows who can be lowest in
it, and a branch ends when the items of a section, stacked from the lowest offsets they can have, pass the capacity.
What falls apart in time fails by itself: decisions in other parts are skipped on the way back. Of equal items the
first lies lower.

Which item is next is decided in two ways: the lowest of all, or the lowest of the section that failed most often for
the bytes to spare there. Both are tried under several ranks, within limits on the work that grow; failures are
remembered from one search to the next, the latest most, and searches of the second kind are short and many.

Sources: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS 2023
(canonical solutions, section inference, temporal decomposition, ranks). Carlier and Pinson, "An algorithm for solving
the job-shop problem", Management Science 35, 1989 (what the heads on one machine imply, and who can be first).
Boussemart, Hemery, Lecoutre and Sais, "Boosting systematic search by weighting constraints", ECAI 2004.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from planner.layout.canonical_kernels import (
    ANY_SECTION,
    DEPTH,
    FAILED_SECTION,
    INFEASIBLE,
    KERNELS,
    PACKED,
    WHOLE,
    WORK,
    WORK_LIMIT,
)
from planner.layout.storages import Storages

# Keys of the ranks in the order they are tried: each first by the one, ties by the next, the larger first.
RANKS = (
    ("total", "width", "area"),
    ("total", "area", "width"),
    ("width", "total", "area"),
    ("area", "width", "total"),
    ("width", "area", "total"),
    ("size", "width", "total"),
)
# More storages than this take too much memory: the search keeps what is left at every depth.
MAX_STORAGES = 3_000
# Looks at a section: of a search in the first round for each pair of storages, so that it can place all of them, and
# between two questions whether to stop. A billion take about two seconds.
FIRST_WORK, SLICE = 50, 20_000_000
# The first round ends when less than this part of what is needed lies between what failed and the best, later ones
# when half of that does.
FINEST_GAP = 250


@dataclass(frozen=True, eq=False, slots=True)
class Packing:
    """Storages over sections, the times when most is live. What shrinks counts whole to its end."""

    begin: np.ndarray  # int64[r]  first section
    end: np.ndarray  # int64[r]  half-open
    size: np.ndarray  # int64[r]  bytes
    equal_before: np.ndarray  # int64[r]  the one before that is equal, or -1
    sections: int
    failures: dict[int, np.ndarray]  # capacity -> int64[sections]: how often each could not be packed, the latest most
    section_visits: np.ndarray  # int64[1]  at a section, so far

    @staticmethod
    def of(storages: Storages) -> Packing:
        points = np.unique(np.concatenate([storages.start, storages.stop]))
        # Between two points as much is live as anywhere near only where some begin at the one and end at the other.
        most = np.isin(points[:-1], storages.start) & np.isin(points[1:], storages.stop)
        number = np.concatenate([[0], np.cumsum(most)])
        begin, end = (number[np.searchsorted(points, at)] for at in (storages.start, storages.stop))
        twins = _equal_items(begin, end, storages.size)
        return Packing(begin, end, storages.size, twins, int(number[-1]), {}, np.zeros(1, np.int64))

    def profile(self) -> np.ndarray:
        """int64[sections]: bytes live."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, self.size)
        np.subtract.at(change, self.end, self.size)
        return np.asarray(np.cumsum(change)[:-1])

    def ranks(self) -> Iterator[np.ndarray]:
        """int64[r] each: ranks by the keys of `RANKS`."""
        profile = self.profile()
        width = self.end - self.begin
        keys = {
            "size": self.size,
            "width": width,
            "area": width * self.size.astype(float),
            "total": np.array([profile[a:b].max(initial=0) for a, b in zip(self.begin, self.end, strict=True)]),
        }
        for names in RANKS:
            rank = np.empty(len(self.size), np.int64)
            rank[np.lexsort([-keys[name] for name in reversed(names)])] = np.arange(len(self.size))
            yield rank

    def within(
        self, capacity: int, rank: np.ndarray, choice: int, work: int, stop: Callable[[], bool]
    ) -> tuple[int, np.ndarray]:
        """(what a search says, offsets int64[r] when it says PACKED); `stop` is asked now and then."""
        count, sections = len(self.size), self.sections
        failures = self.failures.setdefault(capacity, np.zeros(sections, np.int64))
        failures[:] = failures // 2 + 1
        least, items = np.zeros((count + 1, count), np.int64), np.zeros((count + 1, count), np.int64)
        levels, columns = np.zeros((count + 1, 4), np.int64), np.zeros((3, sections), np.int64)
        items[0], levels[0, 0] = np.arange(count), count
        state, crossing = np.array([0, 0, sections, 0], np.int64), np.zeros(sections + 1, np.int64)
        said = WORK_LIMIT
        while said == WORK_LIMIT and work > 0 and not stop():
            state[WORK] = min(work, SLICE)
            work -= SLICE
            self.section_visits[0] += state[WORK]
            said = KERNELS.compiled()["pack"](
                choice,
                capacity,
                self.begin,
                self.end,
                self.size,
                rank,
                self.equal_before,
                least,
                items,
                levels,
                columns,
                crossing,
                failures,
                state,
            )
            self.section_visits[0] -= state[WORK]
        return int(said), least[state[DEPTH]]

    def by_any(
        self, capacity: int, ranks: Sequence[np.ndarray], work: int, stop: Callable[[], bool]
    ) -> tuple[int, np.ndarray]:
        """The same for the first of several searches that comes to an end; about `work` for each rank and choice."""
        said, offset = WORK_LIMIT, self.size
        for rank, choice, part in search_schedule(ranks, work):
            said, offset = self.within(capacity, rank, choice, part, stop)
            if said != WORK_LIMIT or stop():
                break
        return said, offset


def search_schedule(ranks: Sequence[np.ndarray], work: int) -> Iterator[tuple[np.ndarray, int, int]]:
    """Rank, choice and work of the searches worth it: long ones for the lowest, many short ones for what failed."""
    turns, short = cycle(ranks), FIRST_WORK * len(ranks[0]) ** 2
    for rank in ranks:
        yield rank, ANY_SECTION, work
        if len(rank) <= WHOLE:
            yield from ((next(turns), FAILED_SECTION, short) for _ in range(work // short))


def _equal_items(*columns: np.ndarray) -> np.ndarray:
    """int64[r]: of each row the one before with the same columns, or -1."""
    order = np.lexsort(columns)  # stable, so that equal ones stay in their order
    same = np.all([column[order[1:]] == column[order[:-1]] for column in columns], axis=0)
    twin = np.full(len(order), -1, np.int64)
    twin[order[1:][same]] = order[:-1][same]
    return twin


def shrinking_packings(
    storages: Storages, best_bytes: int, rounds: int, stop: Callable[[], bool], most_looks: float = math.inf
) -> Iterator[np.ndarray]:
    """Offsets that need less than `best_bytes`, each less than the one before; nothing where none are found.

    A round halves the bytes between what is needed at least and the best so far, each search with four times the
    work of the round before, those within the least bytes a round ahead of the others. `stop` is asked before every
    search and during long ones, and ends them all, as do `most_looks` at a section altogether.
    """
    if not 0 < len(storages.size) <= MAX_STORAGES:
        return
    packing = Packing.of(storages)
    need = low = int(packing.profile().max())  # nothing below `low` is possible
    ranks, unit = list(packing.ranks()), int(np.gcd.reduce(storages.size))
    work = most = FIRST_WORK * len(storages.size) ** 2
    finest = FINEST_GAP

    def over() -> bool:
        return bool(packing.section_visits[0] > most_looks) or stop()

    for _ in range(rounds):
        if best_bytes <= low:
            return
        failed, capacity = low - unit, low
        while failed < capacity < best_bytes and not over():
            said, offset = packing.by_any(capacity, ranks, most if capacity == low else work, over)
            if said == PACKED:
                best_bytes = int((offset + storages.size).max())
                yield offset
            else:
                failed = capacity
            if said == INFEASIBLE:
                low = capacity + unit
            enough = best_bytes - failed <= max(unit, need // finest)
            capacity = failed if enough else (failed + best_bytes) // 2 // unit * unit
        work, most, finest = most, 4 * most, 2 * finest
