"""Random modules under random legal orders compute bit for bit what they compute without a plan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx

from remat.torch.step.aot import eager_backend
from remat.torch.step.joint import Joint
from remat.torch.step.split import split
from tests.torch.random_modules import ROWS, WIDTH, RandomModule, random_order
from tests.torch.steps import equal, results


def loss(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum((output.square().sum() for output in outputs[1:]), outputs[0])


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.heavy) for seed in range(20, 80))])
def test_a_random_module_under_a_random_order_computes_the_same(seed: int) -> None:
    torch.manual_seed(seed)
    module = RandomModule(seed)
    args = (torch.randn(ROWS, WIDTH),)
    repeats = []

    def partition(joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Any:
        step = Joint(joint, num_fwd_outputs)
        order = random_order(step, seed)
        repeats.append(sum(run > 0 for _, run in order))
        return split(step, order)

    planned = torch.compile(
        copy.deepcopy(module), backend=eager_backend(partition), fullgraph=True, dynamic=False, isolate_recompiles=True
    )
    assert equal(results(module, args, loss), results(planned, args, loss))
    assert len(repeats) == 1
