"""Peaks by the allocator events of the profiler."""

from __future__ import annotations

import torch

from remat.torch.step.aot import allocated_bytes

BLOCK = torch.zeros(1 << 18)  # 1 MiB


def test_garbage_of_an_earlier_measurement_that_is_freed_in_a_step_does_not_lower_its_peak() -> None:
    held: list[torch.Tensor] = []
    assert allocated_bytes(lambda: held.append(BLOCK.clone())) == (BLOCK.nbytes, BLOCK.nbytes)

    def step() -> None:
        held.clear()
        BLOCK.clone()

    assert allocated_bytes(step) == (BLOCK.nbytes, 0)
