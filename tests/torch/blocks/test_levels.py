"""Plans of a block that hold less and less between its passes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from remat.torch.blocks.levels import Level, hull, levels_of, price
from remat.torch.step.document import TANGENTS
from remat.torch.step.planning import order_for
from remat.torch.step.recording import Passes, Step, compiled_by, step_backend
from remat.torch.step.split import order_as_recorded, split
from tests.torch.modules import Block


def recorded(module: nn.Module, x: torch.Tensor) -> Step:
    steps: list[Step] = []

    def record(step: Step) -> Passes:
        steps.append(step)
        return split(step.joint, order_as_recorded(step.joint))

    compiled_by(step_backend(record))(module)(x)
    return steps[0]


def test_each_level_holds_less_at_a_higher_price_within_the_peak_of_the_block() -> None:
    torch.manual_seed(0)
    step = recorded(Block(16, 4, 0.1), torch.ones(2, 16, 16, requires_grad=True))
    levels = levels_of(step, {"iterations": 20})
    first = levels[0].plan
    assert levels[0].extra_seconds == 0 and not first["plan"]["recomputed"]
    assert len(levels) > 2 and levels[-1].held_bytes < 0.6 * levels[0].held_bytes
    prices = [price(before, after) for before, after in pairwise(levels)]
    assert prices == sorted(prices) and prices[0] > 0
    for level in levels:
        assert level.plan["plan"]["peak_bytes"] <= first["baseline"]["peak_bytes"]
        names = [name for name, _ in order_for(step, level.plan)]
        assert level.plan["timeline"]["step_bytes"][names.index(TANGENTS)] == level.held_bytes
        assert level.plan["baseline"] == first["baseline"]  # of the block as it is, without bytes that were made up


def test_a_block_that_can_hold_no_less_has_one_level() -> None:
    step = recorded(nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True))
    assert len(levels_of(step, {"iterations": 3})) == 1


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ([(10, 0.0)], [0]),
        ([(10, 0.0), (12, 0.0), (10, 1.0)], [0]),  # what is no better is no level
        ([(10, 0.0), (5, 1.0), (0, 3.0)], [0, 1, 2]),
        ([(10, 0.0), (5, 2.0), (0, 3.0)], [0, 2]),  # a byte of the first step would be dearer than of the second
        ([(0, 3.0), (10, 0.0), (5, 1.5)], [1, 0]),  # on a line
        ([(10, 0.0), (9, 1.0), (8, 1.2), (0, 2.0)], [0, 3]),
    ],
)
def test_the_hull_leaves_out_what_a_mix_of_others_reaches(rows: list[tuple[int, float]], kept: list[int]) -> None:
    levels = [Level({}, held, seconds) for held, seconds in rows]
    assert hull(levels) == [levels[number] for number in kept]
