"""Repair of a packing by ejection: storages above the capacity go below it, and those in their way move in turn.

    capacity │- - -┌─c─┐- -        c takes the place where the least bytes, times how often they were moved, are in
             │ ┌─b─┴─┬─┘           the way: that of b. Next b looks for a place, and so on until all lie below.
             │ └─────┘
             └───────────── steps

A move takes O(r + d log d) for r storages, d of them live with the moved one, so that packings of 100,000 storages
can be repaired, which `canonical_search.py` cannot hold. It proves nothing, and finds nothing where little room is left
throughout. A storage that shrinks counts in full to its end.

Source: weights that grow with each failure are those of Morris, "The breakout method for escaping from local minima",
AAAI 1993.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from planner.layout import best_fit
from planner.layout.storages import Storages

# Moves between two polls of `stop`.
MOVES = 16


def packing_within(storages: Storages, capacity: int, stop: Callable[[], bool]) -> np.ndarray | None:
    """Offsets with an arena of at most `capacity` bytes; None if none is found before `stop`, or none exists.

    Starts from a sweep from the peak, as those that nest lie without gaps there.
    """
    if int(storages.profile().max(initial=0)) > capacity:
        return None
    repair, moves = _Ejection(storages, best_fit.sweep_from_peak(storages, storages.start), capacity), 0
    while repair.waiting:
        if moves % MOVES == 0 and stop():
            return None
        repair.place_largest()
        moves += 1
    return repair.offset


class _Ejection:
    """Offsets of the storages that lie below the capacity, and the others, which wait for a place."""

    def __init__(self, storages: Storages, offset: np.ndarray, capacity: int):
        self.storages, self.capacity, self.rng = storages, capacity, random.Random(0)
        self.offset = offset.copy()
        self.weight = storages.size.astype(float)  # cost of moving a storage
        self.waiting = np.flatnonzero(offset + storages.size > capacity).tolist()
        self.offset[self.waiting] = -1  # -1: not placed

    def place_largest(self) -> None:
        """Place the largest storage that waits; storages in its way wait from now on."""
        size = self.storages.size
        i = max(self.waiting, key=size.__getitem__)
        self.waiting.remove(i)
        live = (self.storages.start < self.storages.stop[i]) & (self.storages.stop > self.storages.start[i])
        near = np.flatnonzero(live & (self.offset >= 0))
        low = self.offset[near]
        high = low + size[near]
        at = self._cheapest(low, high, self.weight[near], int(size[i]))
        ejected = near[(low < at + size[i]) & (high > at)]
        self.offset[i] = at
        if len(ejected):
            self.weight[i] += size[i]
            self.offset[ejected] = -1
            self.waiting += ejected.tolist()

    def _cheapest(self, low: np.ndarray, high: np.ndarray, weight: np.ndarray, size: int) -> int:
        """The offset for `size` bytes where the ranges [low, high) in the way weigh least: the lowest free one, if any.

        Candidates touch a range, the bottom or the capacity.
        """
        by_low, by_high = np.argsort(low, kind="stable"), np.argsort(high, kind="stable")
        low, high = low[by_low], high[by_high]
        tried = np.concatenate([[0, self.capacity - size], high, low - size])
        tried = tried[(tried >= 0) & (tried <= self.capacity - size)]
        begun = np.concatenate([[0.0], np.cumsum(weight[by_low])])[np.searchsorted(low, tried + size, "left")]
        ended = np.concatenate([[0.0], np.cumsum(weight[by_high])])[np.searchsorted(high, tried, "right")]
        in_the_way = begun - ended
        least = in_the_way.min()
        cheapest = tried[in_the_way <= least + 0.5]
        return int(cheapest.min() if least < 0.5 else cheapest[self.rng.randrange(len(cheapest))])
