"""Workspaces that are known without measuring are those that PyTorch's allocator shows."""

from __future__ import annotations

import torch
from torch import nn

import remat.torch

KIB = 1024


class Layers(nn.Module):
    """Convolutions of every kind that has a rule, norms and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),  # an image is read as it lies
            nn.BatchNorm2d(32),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.Dropout(0.1),
            nn.Conv2d(128, 128, 1),  # pointwise: no copies
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ConvTranspose2d(128, 64, 2, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Routes(nn.Module):
    """Arithmetic of floats with integers, booleans and numbers, as of one-hot routes of experts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = nn.functional.one_hot(x.argmax(-1), x.shape[-1])
        seats = chosen.cumsum(0) * chosen
        kept = (x * chosen + x / (1 + seats) - (x > 0) * x) * 2
        return (kept.unsqueeze(-1) * chosen.unsqueeze(1)).square().mean()


def test_workspaces_of_convolutions_norms_and_dropout_are_known_without_measuring() -> None:
    assert_known(Layers(), torch.randn(2, 3, 64, 64))


def test_operands_of_another_dtype_are_converted_first() -> None:
    assert_known(Routes(), torch.randn(512, 128, requires_grad=True))


def assert_known(module: nn.Module, x: torch.Tensor) -> None:
    captures = [remat.torch.capture(module, x, measure=measure) for measure in (True, False)]
    measured, known = (
        {node["name"]: node["cost"].get("workspace_bytes", 0) for node in captured.document["nodes"] if "cost" in node}
        for captured in captures
    )
    assert measured.keys() == known.keys()
    assert max(measured.values()) > 128 * KIB
    off = {name: (held, known[name]) for name, held in measured.items() if abs(held - known[name]) > 64 * KIB}
    assert not off
