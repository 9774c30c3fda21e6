"""Random modules under random legal orders compute bit for bit what they compute without a plan.

`.ci/run` tries 500 more: `bench/soak.py --torch modules --count 500`.
"""

from __future__ import annotations

import pytest

from tests.torch.random_modules import is_equal_under_an_order


@pytest.mark.parametrize("seed", range(20))
def test_a_random_module_under_a_random_order_computes_the_same(seed: int) -> None:
    assert is_equal_under_an_order(seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_random_module_in_an_arena_computes_the_same(seed: int) -> None:
    assert is_equal_under_an_order(seed, in_arena=True)
