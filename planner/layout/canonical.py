"""Packings within a capacity, by depth-first search over canonical ones.

Storages are placed in the order of their offsets, each on top of what lies below it, ties by rank; every packing
can be pushed down into such a one. A branch ends when a section's storages no longer fit above the lowest
offset they can have, or when one would fit whole below what was placed last. What falls apart in time is packed
part by part. Which of several at the same height comes first is a matter of rank: several ranks are tried, each
with a limit on its work, which doubles.

Source: Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS
2023 (canonical solutions, section inference, dominance, temporal decomposition).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from planner.layout.canonical_kernels import KERNELS, NOT_POSSIBLE, OUT_OF_WORK, PACKED
from planner.layout.storages import Storages

# Keys of the ranks in the order they are tried: each first by the one, ties by the next, the larger first.
RANKS = (
    ("total", "width", "area"), ("total", "area", "width"), ("width", "total", "area"), ("area", "width", "total"),
    ("width", "area", "total"), ("size", "width", "total"),
)  # fmt: skip
# More storages than this take too much memory: the search keeps what is left at every depth.
MOST = 2_000
# Work of a rank in the first round: looks at a section or a storage; about 10 ms.
FIRST_WORK = 5_000_000
# Storages left up to which all sections are looked at, round by round: slower each, of more use in small problems.
WHOLE = (512, 32)
# The first round ends when less than this part of what is needed lies between what failed and the best, later ones
# when half of that does.
FINEST = 250


@dataclass(frozen=True, eq=False, slots=True)
class Packing:
    """Storages over sections, the times when most is live. What shrinks counts whole to its end."""

    begin: np.ndarray  # int64[r]  first section
    end: np.ndarray  # int64[r]  half-open
    size: np.ndarray  # int64[r]  bytes
    sections: int
    # Room for the search.
    items: np.ndarray  # int64[2 r (r + 2) + 8]  at every depth who is left, and who may be next
    log: np.ndarray  # int64[r r + 1, 2]
    table: np.ndarray  # int64[sections, 4]

    @staticmethod
    def of(storages: Storages) -> Packing:
        points = np.unique(np.concatenate([storages.start, storages.stop]))
        # Between two points as much is live as anywhere near only where some begin at the one and end at the other.
        most = np.isin(points[:-1], storages.start) & np.isin(points[1:], storages.stop)
        number = np.concatenate([[0], np.cumsum(most)])
        begin, end = (number[np.searchsorted(points, at)] for at in (storages.start, storages.stop))
        count, sections = len(storages.size), int(number[-1])
        return Packing(
            begin, end, storages.size, sections, np.zeros(2 * count * (count + 2) + 8, np.int64),
            np.zeros((count * count + 1, 2), np.int64), np.zeros((sections, 4), np.int64),
        )  # fmt: skip

    def profile(self) -> np.ndarray:
        """int64[sections]: bytes live."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, self.size)
        np.subtract.at(change, self.end, self.size)
        return np.asarray(np.cumsum(change)[: self.sections])

    def ranks(self) -> Iterator[np.ndarray]:
        """int64[r] each: ranks by the keys of `RANKS`."""
        profile = self.profile()
        width = self.end - self.begin
        keys = {
            "size": self.size, "width": width, "area": width * self.size.astype(float),
            "total": np.array([profile[a:b].max(initial=0) for a, b in zip(self.begin, self.end, strict=True)]),
        }  # fmt: skip
        for names in RANKS:
            rank = np.empty(len(self.size), np.int64)
            rank[np.lexsort([-keys[name] for name in reversed(names)])] = np.arange(len(self.size))
            yield rank

    def within(self, capacity: int, rank: np.ndarray, work: int, whole: int) -> tuple[int, np.ndarray]:
        """(what the search says, offsets int64[r] when it says PACKED) for one rank and a limit on work.

        All sections are looked at while `whole` storages are left or fewer.
        """
        count = len(self.size)
        least, counters = np.zeros(count, np.int64), np.array([work, 0, whole], np.int64)
        self.items[:count] = np.arange(count)
        said = KERNELS.compiled()["pack"](
            0, count, -1, capacity, self.begin, self.end, self.size, rank, least, self.items, self.table, self.log,
            counters,
        )  # fmt: skip
        return int(said), least

    def by_any(self, capacity: int, ranks: Sequence[np.ndarray], work: int, whole: int) -> tuple[int, np.ndarray]:
        """The same for the first of the ranks that comes to an end."""
        said, offset = OUT_OF_WORK, self.size
        for rank in ranks:
            said, offset = self.within(capacity, rank, work, whole)
            if said != OUT_OF_WORK:
                break
        return said, offset


def tries(storages: Storages, best_bytes: int, rounds: int, stop: Callable[[], bool]) -> Iterator[np.ndarray]:
    """Offsets that need less than `best_bytes`, each less than the one before; nothing where none are found.

    A round halves the bytes between what is needed at least and the best so far, each search with twice the
    work of the round before. `stop` is asked before every search.
    """
    if not 0 < len(storages.size) <= MOST:
        return
    packing = Packing.of(storages)
    need = low = int(packing.profile().max())  # nothing below `low` is possible
    ranks, unit = list(packing.ranks()), int(np.gcd.reduce(storages.size))
    work, finest = FIRST_WORK, FINEST
    for _, whole in zip(range(rounds), cycle(WHOLE), strict=False):
        if best_bytes <= low:
            return
        failed, capacity = low - unit, low
        while failed < capacity < best_bytes and not stop():
            said, offset = packing.by_any(capacity, ranks, work, whole)
            if said == PACKED:
                best_bytes = int((offset + storages.size).max())
                yield offset
            else:
                failed = capacity
            if said == NOT_POSSIBLE:
                low = capacity + unit
            enough = best_bytes - failed <= max(unit, need // finest)
            capacity = failed if enough else (failed + best_bytes) // 2 // unit * unit
        work, finest = 2 * work, 2 * finest
