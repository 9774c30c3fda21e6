"""Instances of the zoo's networks that train in a few seconds, for the benches of PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from app.zoo.catalogue import networks

#: Instances that train in a few seconds: arguments of the network, and its inputs.
SMALL: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "resnet18": ({}, {"batch": 4, "side": 128}),
    "resnet50": ({}, {"batch": 2, "side": 128}),
    "vit_base": ({"image": 96, "layers": 6, "width": 384, "heads": 6}, {"batch": 4, "side": 96}),
    "convnext_tiny": ({"depths": (2, 2, 4, 2)}, {"batch": 2, "side": 96}),
    "unet": ({"widths": (16, 32, 64, 128, 256)}, {"batch": 2, "side": 128}),
    "bert_base": ({"vocabulary": 3000, "layers": 6, "width": 384, "heads": 6}, {"batch": 2, "sequence": 128}),
    "gpt2_small": ({"vocabulary": 3000, "layers": 6, "width": 384, "heads": 6}, {"batch": 2, "sequence": 128}),
    "llama_1b": (
        {"vocabulary": 3000, "width": 256, "layers": 6, "heads": 8, "key_heads": 2, "hidden": 704},
        {"batch": 2, "sequence": 128},
    ),
}


class WithLoss(torch.nn.Module):
    """A network followed by a loss, if it does not return one."""

    def __init__(self, module: torch.nn.Module, has_loss: bool):
        super().__init__()
        self.module, self.has_loss = module, has_loss

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(**inputs)
        return output if self.has_loss else output.float().square().mean()


def instance(name: str, full: bool, batch: int | None = None) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """(module that returns a loss, inputs) of a network of the zoo; the batch is that of the instance by default."""
    network = networks()[name]
    arguments, sizes = ({}, {"batch": network.batches[0]}) if full else SMALL[name]
    sizes = {**sizes, **({} if batch is None else {"batch": batch})}
    file, _, title = network.module.partition(".")
    torch.manual_seed(0)
    module = getattr(importlib.import_module(f"app.zoo.networks.{file}"), title)(**{**network.arguments, **arguments})
    lengths = {**network.dims, **sizes}
    inputs = {}
    for key, shape in network.inputs.items():
        fixed = [lengths[length] if isinstance(length, str) else length for length in shape]
        if "side" in sizes:
            fixed = [sizes["side"] if length >= 96 else length for length in fixed]
        inputs[key] = torch.randn(fixed) if key == "pixels" else torch.randint(0, 2, fixed)
    return WithLoss(module, network.output == "loss"), inputs
