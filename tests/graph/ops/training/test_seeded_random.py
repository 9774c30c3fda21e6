"""A mask follows from its seed alone."""

import numpy as np
import pytest

from graph.ir import TensorType
from graph.ops.registry.dispatch import run
from graph.ops.registry.registry import Call

X = np.ones((100, 100), np.float32)


def dropped(seed, ratio=0.3, x=X):
    type = TensorType("float32", x.shape)
    call = Call(
        "remat::SeededDropout",
        {"ratio": ratio},
        (type, TensorType("int32", (1,))),
        (None, None),
        (True, True),
        (None,) * 2,
    )
    return run(call, x, np.int32([seed]))


def test_the_same_seed_gives_the_same_mask_and_another_one_another():
    y, mask = dropped(7)
    np.testing.assert_array_equal(y, dropped(7)[0])
    agreeing = np.mean(mask == dropped(8)[1])
    assert 0.55 < agreeing < 0.61  # 0.7² + 0.3² for masks that know nothing of each other


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.9])
def test_as_many_are_kept_as_the_ratio_says_in_every_row_and_column(ratio):
    _, mask = dropped(123456, ratio)
    assert abs(mask.mean() - (1 - ratio)) < 0.02
    assert np.abs(mask.mean(axis=0) - (1 - ratio)).max() < 0.22
    assert np.abs(mask.mean(axis=1) - (1 - ratio)).max() < 0.22


def test_a_fixed_seed_is_that_number_and_a_drawn_one_follows_the_run():
    def seed(run_seed, **attributes):
        call = Call("remat::Seed", attributes, (), (None,), (True,), (), seed=run_seed, stream="s")
        return int(run(call)[0][0])

    assert seed(1, seed=5) == seed(2, seed=5) == 5
    assert seed(1) == seed(1) != seed(2)
