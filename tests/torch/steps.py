"""Training steps: what they compute, and the bytes that they take on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from remat.torch.step.aot import allocated_bytes as peak_and_kept_bytes
from remat.torch.step.aot import allocated_peak as peak_bytes

__all__ = ["Loss", "equal", "peak_and_kept_bytes", "peak_bytes", "results"]

Loss = Callable[[Any], torch.Tensor]


def results(module: nn.Module, args: Sequence[Any], loss: Loss, steps: int = 2) -> list[torch.Tensor]:
    """Losses and gradients of some steps without updates, then buffers and the state of the generator."""
    torch.manual_seed(3)
    found: list[torch.Tensor] = []
    for _ in range(steps):
        module.zero_grad(set_to_none=True)
        value = loss(module(*args))
        value.backward()
        found.append(value.detach().clone())
        found += [torch.empty(0) if p.grad is None else p.grad.clone() for p in module.parameters()]
    return [*found, *(buffer.clone() for buffer in module.buffers()), torch.get_rng_state()]


def equal(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of tensors are equal bit for bit."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
