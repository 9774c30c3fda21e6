"""The loops that are compiled do what the numpy calls do."""

from __future__ import annotations

import numpy as np
import pytest

from planner.algorithms.blocks.state_rows import BYTES, COST, LOOPS, STATE, copy_rows, nth_smallest, rank_states


@pytest.mark.parametrize("count", [0, 1, 2, 3, 16, 57])
def test_states_are_ranked_by_cost_then_bytes_then_number(count: int) -> None:
    states = np.random.default_rng(count).integers(0, 4, (count + 3, STATE))
    rank, by_loop = np.zeros((2, count + 3), np.int64), np.zeros((2, count + 3), np.int64)
    rank_states(states, count, rank)
    LOOPS["rank_states"](states, count, by_loop)
    expected = sorted(range(count), key=lambda i: (states[i, COST], states[i, BYTES], i))
    assert rank[0, :count].tolist() == by_loop[0, :count].tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 3, 16, 57])
def test_the_nth_smallest_value_is_that_of_the_sorted_values(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 20, count + 3) / 8
    for n in range(count):
        expected = sorted(values[:count])[n]
        assert nth_smallest(values.copy(), count, n) == LOOPS["nth_smallest"](values.copy(), count, n) == expected


def test_the_first_rows_are_copied() -> None:
    source = np.arange(5 * STATE).reshape(5, STATE)
    for copy in (copy_rows, LOOPS["copy_rows"]):
        target = np.zeros((4, STATE), np.int64)
        copy(source, 3, target)
        assert (target[:3] == source[:3]).all() and not target[3].any()
