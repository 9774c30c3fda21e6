"""The work of a capture grows with the number of ops, not faster, and it keeps no tensor of the model."""

from __future__ import annotations

import cProfile
import gc
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn

import remat.torch
from tests.torch.modules import Cells


def test_capture_of_a_recurrent_cell_is_linear_in_its_steps() -> None:
    captured_with(1)  # what is done once
    calls, nodes = zip(*map(captured_with, (1, 3, 7)), strict=True)
    few, many = (after - before for before, after in pairwise(nodes))
    assert many == 2 * few
    few, many = (after - before for before, after in pairwise(calls))
    assert many < 2.4 * few  # 5 if every step walked all steps before it


def captured_with(steps: int) -> tuple[int, int]:
    """(function calls of a capture, nodes of its document) of an unrolled LSTM cell with dropout."""
    with cProfile.Profile() as profile:
        captured = remat.torch.capture(Cells(), torch.zeros(steps, 2, 8))
    return sum(entry.callcount for entry in profile.getstats()), len(captured.document["nodes"])


@pytest.mark.parametrize("measure", [False, True])
def test_a_capture_keeps_no_tensor_of_the_model(measure: bool) -> None:
    module, batch = nn.Linear(8, 8), torch.ones(2, 8)
    tensors = [weakref.ref(module.weight), weakref.ref(batch)]
    captured = remat.torch.capture(module, batch, loss=torch.sum, measure=measure)
    del module, batch
    gc.collect()
    assert captured.document and not any(tensor() is not None for tensor in tensors)
