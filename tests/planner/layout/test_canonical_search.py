"""The search within a capacity finds a packing where there is one, and says so where there is none."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner.layout import canonical_kernels, canonical_search
from planner.layout.canonical_kernels import ANY_SECTION, FAILED_SECTION, INFEASIBLE, KERNELS, PACKED
from planner.layout.canonical_search import Packing
from planner.layout.storages import Storages

NONE = np.zeros(0, np.int64)


def storages(rows: Sequence[tuple[int, int, int]]) -> Storages:
    """From (start, stop, size)."""
    start, stop, size = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return Storages(start, stop, stop - start, size, NONE, NONE, NONE, int(stop.max(initial=0)))


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
        given.start[i] < given.stop[j]
        and given.start[j] < given.stop[i]
        and offset[i] < offset[j] + given.size[j]
        and offset[j] < offset[i] + given.size[i]
        for i, j in pairs
    )


@pytest.mark.parametrize("whole", [0, 400])
@pytest.mark.parametrize("choice", [ANY_SECTION, FAILED_SECTION])
def test_what_is_possible_is_found_and_what_is_not_is_told(
    choice: int, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:  # only compiled kernels have it as a constant
        monkeypatch.setattr(canonical_kernels, "MAX_PROPAGATE_ALL", whole)
        monkeypatch.setattr(type(KERNELS), "compiled", lambda self: self.interpreted())
    rng = random.Random(3)
    for _ in range(150 if whole else 25):
        given = drawn(rng, 6)
        least, packing = smallest(given), Packing.of(given)
        for rank in packing.ranks():
            for capacity in range(max(1, least - 2), least + 2):
                said, offset = packing.within(capacity, rank, choice, 1_000_000, lambda: False)
                assert said == (PACKED if capacity >= least else INFEASIBLE)
                if said == PACKED:
                    assert is_apart(given, offset) and given.arena(offset) <= capacity


def test_equal_ones_lie_in_their_order() -> None:
    given = storages([(0, 2, 3), (0, 2, 1), (0, 2, 3), (2, 4, 3), (0, 2, 3)])
    packing = Packing.of(given)
    assert packing.equal_before.tolist() == [-1, -1, 0, -1, 2]
    rank = np.array([4, 3, 2, 1, 0])
    said, offset = packing.within(10, rank, ANY_SECTION, 1_000_000, lambda: False)
    assert said == PACKED and offset[0] < offset[2] < offset[4]


def test_a_search_goes_on_where_it_was_asked_whether_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(random.Random(8), 40)
    found = []
    for slice_ in (1_000_000, 10):
        monkeypatch.setattr(canonical_search, "SLICE", slice_)
        packing, asked = Packing.of(given), itertools.count()
        rank, capacity = packing.ranks()[0], int(packing.profile().max()) + 1
        said, offset = packing.within(capacity, rank, ANY_SECTION, 1_000_000, lambda: next(asked) < 0)  # noqa: B023
        found.append((said, offset.tolist()))
    assert found[0] == found[1] and next(asked) > 2


def test_sections_have_the_most_bytes_that_are_live_at_a_time() -> None:
    rng = random.Random(4)
    for _ in range(50):
        given = drawn(rng, 12)
        assert Packing.of(given).profile().max() == given.profile().max()


def test_tries_get_smaller_up_to_the_smallest() -> None:
    rng = random.Random(5)
    for _ in range(100):
        given = drawn(rng, 6)
        arenas = [
            given.arena(o)
            for o in canonical_search.shrinking_packings(given, int(given.size.sum()) + 1, 12, lambda: False)
        ]
        assert arenas == sorted(set(arenas), reverse=True)
        assert arenas[-1] == smallest(given)


def test_nothing_is_tried_where_nothing_is_wasted_or_a_stop_was_asked_for() -> None:
    given = storages([(0, 2, 3), (1, 3, 4)])
    assert list(canonical_search.shrinking_packings(given, 7, 5, lambda: False)) == []
    assert list(canonical_search.shrinking_packings(given, 100, 5, lambda: True)) == []
    assert list(canonical_search.shrinking_packings(storages([]), 100, 5, lambda: False)) == []


def test_looks_at_sections_are_limited() -> None:
    given = storages([(random.Random(i).randrange(30), 31 + i % 7, 7 + i % 11) for i in range(60)])
    none = list(canonical_search.shrinking_packings(given, int(given.size.sum()) + 1, 6, lambda: False, -1))
    assert none == [] and list(canonical_search.shrinking_packings(given, int(given.size.sum()) + 1, 6, lambda: False))


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
    *_, last = canonical_search.shrinking_packings(given, int(given.size.sum()), 6, lambda: False)
    assert given.arena(last) == 60 and is_apart(given, last)


def test_interpreted_and_compiled_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    drawings = [drawn(rng, 9) for _ in range(20)]

    def all_said() -> list[tuple[int, list[int]]]:
        found = []
        for given in drawings:
            packing = Packing.of(given)
            for choice in (ANY_SECTION, FAILED_SECTION):
                rank, capacity = packing.ranks()[0], int(packing.profile().max())
                said, offset = packing.within(capacity, rank, choice, 500, lambda: False)
                found.append((said, offset.tolist()))
        return found

    compiled = all_said()
    monkeypatch.setattr(type(KERNELS), "compiled", lambda self: self.interpreted())
    assert all_said() == compiled


def test_mixed_ranks_differ_and_keep_the_order_by_total():
    packing = Packing.of(drawn(random.Random(5), 30))
    ranks = list(itertools.islice(packing.mixed_ranks(), 6))
    assert len({tuple(rank) for rank in ranks}) > 1
    for rank in ranks:
        assert sorted(rank.tolist()) == list(range(len(rank)))
        assert (np.diff(packing.total()[np.argsort(rank)]) <= 0).all()


def test_mixed_ranks_know_time_between_steps():
    rows = storages([(0, 1, 4), (0, 1, 4), (0, 1, 4)])
    timed = replace(rows, duration=np.array([1, 9, 5]))
    assert next(Packing.of(timed).mixed_ranks()).tolist() == [2, 0, 1]
    assert next(Packing.of(rows).mixed_ranks()).tolist() == [0, 1, 2]
