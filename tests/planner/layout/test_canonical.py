"""The search within a capacity finds a packing where there is one, and says so where there is none."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from planner.layout import canonical
from planner.layout.canonical import WHOLE, Packing
from planner.layout.canonical_kernels import KERNELS, NOT_POSSIBLE, PACKED
from planner.layout.storages import Storages

NONE = np.zeros(0, np.int64)


def storages(rows: Sequence[tuple[int, int, int]]) -> Storages:
    """From (start, stop, size)."""
    start, stop, size = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return Storages(start, stop, size, NONE, NONE, NONE, int(stop.max(initial=0)))


def drawn(rng: random.Random, most: int) -> Storages:
    rows = []
    for _ in range(rng.randint(1, most)):
        start = rng.randrange(6)
        rows.append((start, start + rng.randint(1, 4), rng.randint(1, 4)))
    return storages(rows)


def smallest(given: Storages) -> int:
    """The smallest arena, by placing in every order, each at the lowest place that is free."""
    best = int(given.size.sum())
    for order in itertools.permutations(range(len(given.size))):
        offset: dict[int, int] = {}
        for i in order:
            beside = [j for j in offset if given.start[j] < given.stop[i] and given.start[i] < given.stop[j]]
            at = 0
            for j in sorted(beside, key=offset.__getitem__):
                if offset[j] < at + given.size[i]:
                    at = max(at, offset[j] + int(given.size[j]))
            offset[i] = at
        best = min(best, max(at + int(given.size[i]) for i, at in offset.items()))
    return best


def is_apart(given: Storages, offset: np.ndarray) -> bool:
    pairs = itertools.combinations(range(len(offset)), 2)
    return bool((offset >= 0).all()) and not any(
        given.start[i] < given.stop[j] and given.start[j] < given.stop[i]
        and offset[i] < offset[j] + given.size[j] and offset[j] < offset[i] + given.size[i]
        for i, j in pairs
    )  # fmt: skip


@pytest.mark.parametrize("whole", WHOLE)
def test_what_is_possible_is_found_and_what_is_not_is_told(whole: int) -> None:
    rng = random.Random(3)
    for _ in range(150):
        given = drawn(rng, 6)
        least, packing = smallest(given), Packing.of(given)
        for rank in packing.ranks():
            for capacity in range(max(1, least - 2), least + 2):
                said, offset = packing.within(capacity, rank, 1_000_000, whole)
                assert said == (PACKED if capacity >= least else NOT_POSSIBLE)
                if said == PACKED:
                    assert is_apart(given, offset) and given.arena(offset) <= capacity


def test_sections_have_the_most_bytes_that_are_live_at_a_time() -> None:
    rng = random.Random(4)
    for _ in range(50):
        given = drawn(rng, 12)
        assert Packing.of(given).profile().max() == given.profile().max()


def test_tries_get_smaller_up_to_the_smallest() -> None:
    rng = random.Random(5)
    for _ in range(100):
        given = drawn(rng, 6)
        arenas = [given.arena(o) for o in canonical.tries(given, int(given.size.sum()) + 1, 12, lambda: False)]
        assert arenas == sorted(set(arenas), reverse=True)
        assert arenas[-1] == smallest(given)


def test_nothing_is_tried_where_nothing_is_wasted_or_a_stop_was_asked_for() -> None:
    given = storages([(0, 2, 3), (1, 3, 4)])
    assert list(canonical.tries(given, 7, 5, lambda: False)) == []
    assert list(canonical.tries(given, 100, 5, lambda: True)) == []
    assert list(canonical.tries(storages([]), 100, 5, lambda: False)) == []


def test_a_large_one_is_packed_without_waste() -> None:
    #   a tower of 60 at every step, cut at random heights at random steps: it fits without a gap
    rng, rows = random.Random(6), []
    for _ in range(12):
        low = 0
        for high in [*sorted(rng.sample(range(1, 60), 5)), 60]:
            cuts = [0, *sorted(rng.sample(range(1, 40), 4)), 40]
            rows += [(100 * _ + a, 100 * _ + b, high - low) for a, b in itertools.pairwise(cuts)]
            low = high
    given = storages(rows)
    *_, last = canonical.tries(given, int(given.size.sum()), 6, lambda: False)
    assert given.arena(last) == 60 and is_apart(given, last)


def test_interpreted_and_compiled_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    drawings = [drawn(rng, 9) for _ in range(20)]

    def all_said() -> list[tuple[int, list[int]]]:
        found = []
        for given in drawings:
            packing = Packing.of(given)
            said, offset = packing.within(int(packing.profile().max()), next(iter(packing.ranks())), 500, 512)
            found.append((said, offset.tolist()))
        return found

    compiled = all_said()
    monkeypatch.setattr(type(KERNELS), "compiled", lambda self: self.interpreted())
    assert all_said() == compiled
