"""Lives that do not overlap share a buffer of the largest size, and no sharing found is beaten on small cases."""

import random

import numpy as np
import pytest

from graph.buffer_sharing import assign as buffers
from graph.buffer_sharing.assign import assign_buffers


def columns(lives):
    """(start, stop, size) of lives given as first and last step, both included."""
    rows = np.array(lives, np.int64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1] + 1, rows[:, 2]


def least_bytes(start, stop, size):
    """By trying every partition."""

    def tried(i, buffers):
        if i == len(start):
            return sum(max(size[j] for j in members) for members in buffers)
        free = [b for b in buffers if all(stop[j] <= start[i] or stop[i] <= start[j] for j in b)]
        found = [tried(i + 1, [*(b for b in buffers if b is not taken), [*taken, i]]) for taken in free]
        return min([*found, tried(i + 1, [*buffers, [i]])])

    return tried(0, [])


def test_a_buffer_has_the_size_of_its_largest_member():
    #   step   1   2   3   4   5   6   7
    #   a 10   ├───────────┤
    #   b  1           ├───────┤
    #   c  1                   ├───┤
    #   d 10                   ├───────┤
    found = assign_buffers(*columns([(1, 3, 10), (3, 4, 1), (5, 6, 1), (5, 7, 10)]))
    assert found.buffer.tolist() == [0, 1, 1, 0]
    assert found.size.tolist() == [10, 1]
    assert found.bytes == found.bound_bytes == 11


def test_lifetimes_that_touch_in_a_step_do_not_share():
    assert assign_buffers(*columns([(0, 1, 4), (1, 2, 4)])).bytes == 8
    assert assign_buffers(*columns([(0, 1, 4), (2, 2, 4)])).bytes == 4


def test_groups_do_not_mix():
    start, stop, size = columns([(0, 0, 4), (1, 1, 4), (2, 2, 4)])
    assert assign_buffers(start, stop, size, np.array([0, 1, 0])).buffer.tolist() == [0, 1, 0]
    assert assign_buffers(start, stop, size, np.array([-1, -1, 0])).buffer.tolist() == [0, 1, 2]


def test_nothing_to_share_takes_nothing():
    assert assign_buffers(*columns([])).bytes == 0


@pytest.mark.parametrize("seed", range(150))
def test_few_storages_share_as_well_as_any_partition(seed):
    rng = random.Random(seed)
    lives = [
        (first, first + rng.randint(0, 3), rng.randint(0, 9)) for first in rng.choices(range(7), k=rng.randint(1, 7))
    ]
    start, stop, size = columns(lives)
    found = assign_buffers(start, stop, size)
    legal(found, start, stop, size)
    assert found.bytes == least_bytes(start.tolist(), stop.tolist(), size.tolist()) >= found.bound_bytes


def legal(found, start, stop, size):
    """Buffers hold their members, one at a time."""
    for i in range(len(start)):
        assert found.size[found.buffer[i]] >= size[i]
        for j in range(i):
            assert found.buffer[i] != found.buffer[j] or stop[i] <= start[j] or stop[j] <= start[i]


@pytest.mark.parametrize("seed", range(20))
def test_many_storages_are_shared_in_one_sweep(seed, monkeypatch):
    monkeypatch.setattr(buffers, "MAX_BUFFER_PROBES", 0)
    monkeypatch.setattr(buffers, "MAX_EXACT_STORAGES", 0)
    rng = random.Random(seed)
    lives = [(first, first + rng.randint(0, 9), rng.randint(0, 99)) for first in rng.choices(range(60), k=80)]
    start, stop, size = columns(lives)
    group = np.array(rng.choices([0, 1, -1], [5, 4, 1], k=80))
    found = assign_buffers(start, stop, size, group)
    legal(found, start, stop, size)
    assert found.bound_bytes <= found.bytes < size.sum()
    for b in range(len(found.size)):
        members = group[found.buffer == b]
        assert len(set(members)) == 1 and (members[0] >= 0 or len(members) == 1)


def test_a_hundred_thousand_simultaneously_live_storages_get_separate_buffers():
    count = 100_000
    found = assign_buffers(np.arange(count), np.full(count, count), np.ones(count, np.int64))
    assert found.bytes == found.bound_bytes == count
