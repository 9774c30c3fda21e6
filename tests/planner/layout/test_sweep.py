"""A sweep places each storage into the tightest free range, compiled and interpreted alike."""

from __future__ import annotations

import numpy as np
import pytest

from planner.layout.storages import Storages
from planner.layout.sweep import sweep
from planner.layout.sweep_kernels import KERNELS


def drawn(rng: np.random.Generator, steps: int = 20) -> Storages:
    """Some storages, of which some shrink before their end."""
    count = int(rng.integers(1, 40))
    start = rng.integers(0, steps, count)
    stop, size = start + rng.integers(1, steps // 2, count), rng.integers(1, 9, count)
    shrinks = np.flatnonzero((rng.random(count) < 0.3) & (stop - start > 1))
    at = rng.integers(start[shrinks] + 1, stop[shrinks]) if len(shrinks) else shrinks
    left = rng.integers(0, size[shrinks]) if len(shrinks) else shrinks
    return Storages(start, stop, stop - start, size, at, shrinks, left, int(stop.max()))


def expected(given: Storages, offset: np.ndarray, order: np.ndarray, first: int, high: np.ndarray) -> np.ndarray:
    """As `sweep`, from the bytes that are live at each step."""
    result = offset.copy()
    live = [int(i) for i in np.flatnonzero((offset >= 0) & (given.stop > first))]
    top = max((int(offset[i] + given.size[i]) for i in live), default=0)
    for i in order[(offset[order] < 0) & (given.start[order] >= first)].tolist():
        used = np.zeros(top, bool)
        for j in live:
            now = given.size[j]
            for step, storage, left in zip(given.shrink_step, given.shrink_storage, given.shrink_size, strict=True):
                if storage == j and step <= given.start[i]:
                    now = left
            if given.stop[j] > given.start[i]:
                used[result[j] : result[j] + now] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[True], used, [True]]).astype(int)))
        ranges = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
        size = int(given.size[i])
        if fitting := [(end - begin, begin, end) for begin, end in ranges if end - begin >= size]:
            _, begin, end = min(fitting)
            result[i] = end - size if high[i] else begin
        else:
            result[i] = next((begin for begin, end in ranges if end == top), top)
            top = int(result[i]) + size
        live.append(i)
    return result


@pytest.mark.parametrize("is_compiled", [False, True])
def test_each_storage_takes_the_smallest_free_range_that_suffices(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_compiled:
        KERNELS.compiled()
    monkeypatch.setattr(type(KERNELS), "is_compiled", lambda _: is_compiled)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        given = drawn(rng)
        offset, first, high = np.full(len(given.size), -1), int(rng.integers(0, 20)), rng.random(len(given.size)) < 0.4
        if seed % 2:  # a stack at one step, as in a sweep from the peak
            here = np.flatnonzero((given.start <= first) & (given.stop > first))
            offset[here] = np.cumsum(given.size[here]) - given.size[here]
        order = np.lexsort((-given.size, -given.stop, given.start))
        want = expected(given, offset, order, first, high)
        sweep(given, offset, order, first, high)
        assert offset.tolist() == want.tolist()
