"""Workspaces that are known without measuring are those that PyTorch's allocator shows."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import nn

import remat.torch
from remat.torch.step.aot import allocations
from remat.torch.step.convolution_workspace import LIMIT_NAMES, NARROW, Convolution, channel_block

KIB = 1024
CHANNELS = (6, 8, 12, 16, 20, 32)


class Case(NamedTuple):
    """A convolution of images of 32 x 32."""

    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    is_transposed: bool = False
    images: int = 2
    wanted: tuple[bool, bool, bool] = (True, True, False)  # gradients: of input, weight, bias
    is_channels_last: bool = False


CASES = (
    *(Case(*both, *kernel) for both in product(CHANNELS, CHANNELS) for kernel in ((3, 1), (1, 2))),
    *(Case(inputs, outputs, 3, 2) for inputs, outputs in product((12, 16, 20, 32), CHANNELS)),
    *(Case(3, channels, *kernel, wanted=(False, True, False)) for channels in CHANNELS for kernel in ((3, 1), (4, 4))),
    *(Case(channels, channels, 3, stride, channels) for channels in CHANNELS for stride in (1, 2)),
    *(Case(channels, channels, groups=groups) for channels, groups in ((32, 2), (64, 8), (128, 32))),
    *(Case(*both, 2, 2, is_transposed=True) for both in ((16, 16), (20, 20), (24, 12), (32, 20))),
    *(Case(channels, 32, 1, images=images) for channels in CHANNELS for images in (2, 15, 16)),
    *(Case(32, 32, 1, groups=groups) for groups in (2, 32)),
    *(Case(channels, 16, images=1) for channels in (16, 20)),  # the one by PyTorch itself, the other by oneDNN
    *(Case(channels, channels, 7, groups=channels, is_channels_last=True) for channels in (16, 24, 96)),
    *(Case(20, 20, wanted=wanted) for wanted in product((True, False), repeat=3) if any(wanted)),
)


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


def test_convolutions_of_any_channels_are_known_on_narrow_blocks() -> None:
    """Which `tests/conftest.py` chooses."""
    assert channel_block() == NARROW
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert not wrong_convolutions()
    finally:
        torch.set_num_threads(threads)


def test_convolutions_of_any_channels_are_known_on_the_blocks_of_this_machine() -> None:
    """In a process of its own: oneDNN decides once which instructions it uses."""
    environment = {name: value for name, value in os.environ.items() if name not in LIMIT_NAMES} | {
        "OMP_NUM_THREADS": "1"
    }
    script = "from tests.torch.test_workspace import wrong_convolutions; print(wrong_convolutions())"
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def wrong_convolutions() -> list[str]:
    """Convolutions whose workspace, of the result or of the gradients, is more than 2% and 4 KiB off."""
    wrong = []
    for case in CASES:
        inputs, outputs, kernel, stride, groups, is_transposed, images, wanted, is_channels_last = case
        padding = [0 if is_transposed or kernel % 2 == 0 else kernel // 2] * 2
        shape = (inputs, outputs, kernel, kernel) if is_transposed else (outputs, inputs // groups, kernel, kernel)
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        data = torch.rand(images, inputs, 32, 32).contiguous(memory_format=layout)
        weight, strides, once = torch.rand(shape), [stride] * 2, [1, 1]
        others = (strides, padding, once, is_transposed, [0, 0], groups)
        forward = partial(torch.ops.aten.convolution, data, weight, None, *others)
        gradient = torch.rand_like(forward())
        backward = partial(torch.ops.aten.convolution_backward, gradient, data, weight, [outputs], *others, wanted)
        backward()
        convolution = Convolution(data, weight, gradient, strides, padding, once, is_transposed, groups)
        known = {"result": convolution.forward(), "gradients": convolution.gradients(*wanted)}
        measured = allocations({"result": lambda run=forward: run, "gradients": lambda run=backward: run})  # type: ignore[misc]
        wrong += [
            f"{what} of {case}: {held}, known {known[what]}"
            for what, held in measured.items()
            if abs(held - known[what]) > max(4 * KIB, 0.02 * held)
        ]
    return wrong


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
