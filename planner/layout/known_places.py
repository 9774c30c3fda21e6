"""Addresses of one order as the start for another order of the same problem: what lives no longer keeps its place.

before   a b c d b e       y of b is written twice; without the second b, y lives from the first b to e, longer than
after    a b c d   e       either did, and waits for a place; x of a, which lives as long as before, keeps its own
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.layout.storages import StoragePlacement, storage_placement
from planner.problem.plan import Lifetimes


@dataclass(frozen=True, eq=False, slots=True)
class KnownPlaces:
    """Offsets of an order with s steps and k instances."""

    lifetimes: Lifetimes
    workspace: np.ndarray  # int64[s]  bytes of each step
    offsets: np.ndarray  # int64[k + s]  as of `planner.layout`

    def begin(
        self, placement: StoragePlacement, lifetimes: Lifetimes, origin: np.ndarray, size: np.ndarray, alignment: int
    ) -> np.ndarray:
        """int64[r]: known offsets of the storages of another order, -1 where none is; those known do not overlap.

        `origin` is int64[steps], ascending: the step of the known order that each step was, with the same task.
        `size` is int64[m], bytes per buffer.
        """
        storages = placement.storages
        known = storage_placement(self.lifetimes, size, self.workspace, alignment)
        result = np.full(len(storages.size), -1, np.int64)
        if not len(known.storages.size):
            return result
        buffers = len(size)
        key = _first_writes(placement, lifetimes, origin, buffers)
        before = _first_writes(known, self.lifetimes, np.arange(len(self.workspace)), buffers)
        by_key = np.argsort(before, kind="stable")
        at = by_key[np.minimum(np.searchsorted(before, key, sorter=by_key), len(before) - 1)]
        fits = before[at] == key
        fits &= origin[storages.stop - 1] < known.storages.stop[at]
        fits &= ~np.isin(at, known.storages.shrink_storage)  # others may lie in the tail that it freed
        placed = known.storage_of >= 0
        offsets = np.zeros(len(before), np.int64)
        offsets[known.storage_of[placed]] = self.offsets[placed] - known.base
        result[fits] = offsets[at[fits]]
        return result


def _first_writes(placement: StoragePlacement, lifetimes: Lifetimes, origin: np.ndarray, buffers: int) -> np.ndarray:
    """int64[r]: a number for the write, or for the workspace, with which each storage begins, by steps of `origin`."""
    steps = len(origin)
    writer = np.append(origin, -1)[lifetimes.writer_step]  # -1: exists from the start
    number = np.concatenate([(writer + 1) * (buffers + 1) + lifetimes.buffer, (origin + 1) * (buffers + 1) + buffers])
    begins = np.concatenate([lifetimes.taken_from < 0, np.ones(steps, bool)]) & (placement.storage_of >= 0)
    result = np.full(len(placement.storages.size), -1, np.int64)
    result[placement.storage_of[begins]] = number[begins]
    return result
