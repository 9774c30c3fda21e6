"""Storages: the units that need an address. Instances along a takeover share one; each workspace has its own.

step      0   1   2   3   4
x         ├───────┤               x, then y and z in its bytes: one storage, whose tail is free
y                 ├───┤           once only y, which is smaller, is live
z                     ├───┤
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.problem.plan import Lifetimes


@dataclass(frozen=True, eq=False, slots=True)
class Storages:
    """r storages to place above those that are live throughout; sizes are multiples of the alignment."""

    start: np.ndarray  # int64[r]  first step
    stop: np.ndarray  # int64[r]  half-open
    duration: np.ndarray  # int64[r]  stop - start, in steps or in the unit of time that the steps were taken from
    size: np.ndarray  # int64[r]  bytes at the start, the maximum
    shrink_step: np.ndarray  # int64[q]  from this step on ...
    shrink_storage: np.ndarray  # int64[q]  ... this storage has ...
    shrink_size: np.ndarray  # int64[q]  ... only this many bytes
    steps: int

    def arena(self, offset: np.ndarray) -> int:
        """Bytes of the arena that these offsets need."""
        return int((offset + self.size).max(initial=0))

    def profile(self) -> np.ndarray:
        """int64[steps]: live bytes, a lower bound on the arena."""
        change = np.zeros(self.steps + 1, np.int64)
        np.add.at(change, self.start, self.size)
        left = self.size.copy()
        for step, storage, size in zip(
            self.shrink_step.tolist(), self.shrink_storage.tolist(), self.shrink_size.tolist(), strict=True
        ):
            change[step] -= left[storage] - size
            left[storage] = size
        np.subtract.at(change, self.stop, left)
        return np.asarray(np.cumsum(change)[: self.steps])


@dataclass(frozen=True, eq=False, slots=True)
class StoragePlacement:
    """The storages of a plan, and the mapping from their offsets to those of the instances."""

    storages: Storages
    below: np.ndarray  # int64[k + s]: offset of instances that are live throughout, at the bottom; else -1
    base: int  # bytes of those instances
    storage_of: np.ndarray  # int64[k + s]: storage of each instance and workspace, or -1

    def offsets(self, of_storage: np.ndarray) -> np.ndarray:
        """int64[k + s]: offsets of instances and workspaces, from the offsets of the storages, which start at 0."""
        placed = self.storage_of >= 0
        result = self.below.copy()
        result[placed] = of_storage[self.storage_of[placed]] + self.base
        return result


def storage_placement(
    lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int
) -> StoragePlacement:
    """The storages to place. O(k log k) time for k instances."""
    steps, count = len(workspace), len(lifetimes.buffer)
    rounded = -(-size[lifetimes.buffer] // alignment) * alignment
    needs = (rounded > 0) & (lifetimes.stop > lifetimes.start)
    always = needs & is_live_throughout(lifetimes, steps)
    below = np.full(count + steps, -1, np.int64)
    ends = np.cumsum(rounded[always])
    below[:count][always] = ends - rounded[always]
    _share_resident(lifetimes, below)

    root = _roots(lifetimes)
    needs &= ~always
    inside = needs & always[root]  # takes over a storage that is live throughout
    below[:count][inside] = below[root[inside]]
    needs &= ~inside
    own = np.flatnonzero(needs & (root == np.arange(count)))
    busy = np.flatnonzero(workspace > 0)
    number = np.full(count, -1, np.int64)
    number[own] = np.arange(len(own))
    storage_of = np.concatenate([np.where(needs, number[root], -1), np.full(steps, -1, np.int64)])
    storage_of[count + busy] = len(own) + np.arange(len(busy))
    last = lifetimes.stop[own]
    members = np.flatnonzero(needs & (root != np.arange(count)))
    np.maximum.at(last, number[root[members]], lifetimes.stop[members])
    # A taker is the only user of the bytes once its source has ended.
    alone = lifetimes.stop[lifetimes.taken_from]
    members = members[lifetimes.stop[members] > alone[members]]
    smaller = members[rounded[members] < rounded[lifetimes.taken_from[members]]]
    smaller = smaller[np.argsort(alone[smaller], kind="stable")]
    busy_stop = busy + 1 if lifetimes.workspace_stop is None else lifetimes.workspace_stop[busy]
    start, stop = np.concatenate([lifetimes.start[own], busy]), np.concatenate([last, busy_stop])
    storages = Storages(
        start,
        stop,
        stop - start,
        np.concatenate([rounded[own], -(-workspace[busy] // alignment) * alignment]),
        alone[smaller],
        number[root[smaller]],
        rounded[smaller],
        steps,
    )
    return StoragePlacement(storages, below, int(ends[-1]) if len(ends) else 0, storage_of)


def is_live_throughout(lifetimes: Lifetimes, steps: int) -> np.ndarray:
    """bool[k]: instances that exist from the start and are held to the end of the last step."""
    return np.asarray((lifetimes.writer_step < 0) & (lifetimes.stop == steps) & (lifetimes.stop > lifetimes.start))


def _share_resident(lifetimes: Lifetimes, below: np.ndarray) -> None:
    """Give writes into a storage that is live throughout the offset of that storage."""
    inside = np.flatnonzero((lifetimes.writer_step >= 0) & (lifetimes.stop == 0))
    first = np.searchsorted(lifetimes.buffer, lifetimes.buffer[inside])
    below[inside] = below[first]


def _roots(lifetimes: Lifetimes) -> np.ndarray:
    """int64[k]: the first instance of each takeover chain, by pointer doubling."""
    root = np.where(lifetimes.taken_from >= 0, lifetimes.taken_from, np.arange(len(lifetimes.buffer)))
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return np.asarray(root)
        root = further
