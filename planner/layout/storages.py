"""Storages: what needs an address of its own. Instances along a takeover share one, workspaces get one each.

step      0   1   2   3   4
x         ├───────┤               x, then y and z in its bytes: one storage, whose tail is free
y                 ├───┤           once y, which is smaller, stands alone
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
    size: np.ndarray  # int64[r]  bytes at the start, which are the most
    shrink_step: np.ndarray  # int64[q]  from this step on ...
    shrink_storage: np.ndarray  # int64[q]  ... this storage has
    shrink_size: np.ndarray  # int64[q]  ... only these bytes
    steps: int

    def arena(self, offset: np.ndarray) -> int:
        """Bytes that these offsets need."""
        return int((offset + self.size).max(initial=0))

    def profile(self) -> np.ndarray:
        """int64[steps]: bytes live, which no arena can be below."""
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
    """The storages of a plan, and how their offsets become those of its instances."""

    storages: Storages
    below: np.ndarray  # int64[k + s]: offset of what is live throughout, laid out at the bottom; else -1
    base: int  # bytes of all that
    storage_of: np.ndarray  # int64[k + s]: storage of each instance and workspace, or -1

    def offsets(self, of_storage: np.ndarray) -> np.ndarray:
        """int64[k + s] from the offsets of the storages, which begin at 0."""
        placed = self.storage_of >= 0
        result = self.below.copy()
        result[placed] = of_storage[self.storage_of[placed]] + self.base
        return result


def storage_placement(lives: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int) -> StoragePlacement:
    """What has to be placed. O(k log k) time for k instances."""
    steps, count = len(workspace), len(lives.buffer)
    rounded = -(-size[lives.buffer] // alignment) * alignment
    needs = (rounded > 0) & (lives.stop > lives.start)
    always = needs & (lives.writer_step < 0) & (lives.stop == steps)
    below = np.full(count + steps, -1, np.int64)
    ends = np.cumsum(rounded[always])
    below[:count][always] = ends - rounded[always]
    _share_resident(lives, below)

    root = _roots(lives)
    needs &= ~always
    inside = needs & always[root]  # takes over what was there from the start up to the last step
    below[:count][inside] = below[root[inside]]
    needs &= ~inside
    own = np.flatnonzero(needs & (root == np.arange(count)))
    busy = np.flatnonzero(workspace > 0)
    number = np.full(count, -1, np.int64)
    number[own] = np.arange(len(own))
    storage_of = np.concatenate([np.where(needs, number[root], -1), np.full(steps, -1, np.int64)])
    storage_of[count + busy] = len(own) + np.arange(len(busy))
    last = lives.stop[own]
    members = np.flatnonzero(needs & (root != np.arange(count)))
    np.maximum.at(last, number[root[members]], lives.stop[members])
    # A taker has the bytes alone from the step after the one that writes it.
    members = members[lives.stop[members] > lives.start[members] + 1]
    smaller = members[rounded[members] < rounded[lives.taken_from[members]]]
    smaller = smaller[np.argsort(lives.start[smaller], kind="stable")]
    storages = Storages(
        np.concatenate([lives.start[own], busy]),
        np.concatenate([last, busy + 1]),
        np.concatenate([rounded[own], -(-workspace[busy] // alignment) * alignment]),
        lives.start[smaller] + 1,
        number[root[smaller]],
        rounded[smaller],
        steps,
    )
    return StoragePlacement(storages, below, int(ends[-1]) if len(ends) else 0, storage_of)


def _share_resident(lives: Lifetimes, below: np.ndarray) -> None:
    """Writes into a storage that is live throughout lie where it lies."""
    inside = np.flatnonzero((lives.writer_step >= 0) & (lives.stop == 0))
    first = np.searchsorted(lives.buffer, lives.buffer[inside])
    below[inside] = below[first]


def _roots(lives: Lifetimes) -> np.ndarray:
    """int64[k]: the instance at the start of each takeover chain, by pointer doubling."""
    root = np.where(lives.taken_from >= 0, lives.taken_from, np.arange(len(lives.buffer)))
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return np.asarray(root)
        root = further
