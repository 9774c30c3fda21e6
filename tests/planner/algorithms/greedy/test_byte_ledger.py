"""The ledger answers as a plain array would."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from planner.algorithms.greedy import byte_ledger
from planner.algorithms.greedy.byte_ledger import (
    LOOPS,
    add,
    at_place,
    count_above,
    count_once,
    highest,
    highest_in,
    ledger_of,
)


@pytest.mark.parametrize("places", [1, 7, 1024, 1025, 1500])
def test_the_ledger_agrees_with_a_plain_array(places):
    rng = random.Random(places)
    plain = np.array([rng.randint(0, 50) for _ in range(places)], np.int64)
    ledger = ledger_of(plain)
    for _ in range(200):
        begin, end = sorted(rng.sample(range(places + 1), 2))
        limit = 10 * rng.randint(0, 6)  # often the same as before
        if rng.random() < 0.5:
            amount = rng.randint(-9, 9)
            add(ledger, begin, end, amount)
            plain[begin:end] += amount
        elif rng.random() < 0.3:
            count_once(ledger, limit)
        assert count_above(ledger, begin, end, limit) == (plain[begin:end] > limit).sum()
        assert highest_in(ledger, begin, end) == max(0, plain[begin:end].max())
        assert at_place(ledger, begin) == plain[begin]
        assert highest(ledger) == max(0, plain.max())


@pytest.mark.parametrize("name", LOOPS)
def test_the_loops_that_are_compiled_do_what_the_numpy_calls_do(name: str) -> None:
    row = np.random.default_rng(0).integers(-9, 9, 20)
    further = {"add_to_part": (5,), "count_part": (2,), "accumulate_part": (2, np.arange(21))}.get(name, ())
    results = []
    for kernel in (getattr(byte_ledger, name), LOOPS[name]):
        arguments = copy.deepcopy((row, 3, 17, *further))
        results.append((kernel(*arguments), *(part.tolist() for part in arguments if isinstance(part, np.ndarray))))
    assert results[0] == results[1]
