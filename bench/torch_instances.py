"""Networks for the benches of PyTorch: at their full size, and narrow ones that train in a few seconds.

Narrow networks keep their depth or most of it, and activations outweigh parameters and gradients as at full size.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from app.zoo.catalogue import networks

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TorchNetwork:
    """A network: arguments and input shapes at full size, and those that differ in the small instance.

    An input named `pixels` has normal values; others are numbers of tokens or classes.
    """

    module: str  # `file.Class` of `app.zoo.networks`, or of `bench.torch_networks`
    arguments: Mapping[str, Any]
    inputs: Mapping[str, Shape]
    small: Mapping[str, Any] = field(default_factory=dict)
    small_inputs: Mapping[str, Shape] = field(default_factory=dict)
    has_loss: bool = False
    dtype: torch.dtype = torch.float32


def _of_zoo(name: str, inputs: Mapping[str, Shape], small: Mapping[str, Any], **small_inputs: Shape) -> TorchNetwork:
    """A network of the zoo at the batch given."""
    network = networks()[name]
    module = f"app.zoo.networks.{network.module}"
    return TorchNetwork(module, network.arguments, inputs, small, small_inputs, network.output == "loss")


def _written(title: str, arguments: Mapping[str, Any], tokens: Shape, small: Mapping[str, Any]) -> TorchNetwork:
    """A network over tokens of `bench.torch_networks`; small, at eight sequences of at most 128."""
    inputs = {"tokens": tokens}
    return TorchNetwork(f"bench.torch_networks.{title}", arguments, inputs, small, {"tokens": (8, min(128, tokens[1]))})


_TEXT = {"vocabulary": 512, "layers": 6, "width": 128, "heads": 4}
_IMAGES = {"width": 16, "classes": 10}
_GPT2 = {"vocabulary": 50257, "longest": 1024, "width": 768, "layers": 12, "heads": 12}
_BERT = {**_GPT2, "vocabulary": 30522, "longest": 512}
_DECODER = {"vocabulary": 32000, "width": 4096, "layers": 32, "heads": 32, "key_heads": 32, "hidden": 11008}

NETWORKS: dict[str, TorchNetwork] = {
    "resnet18": _of_zoo("resnet18", {"pixels": (32, 3, 224, 224)}, _IMAGES, pixels=(8, 3, 128, 128)),
    "resnet50": _of_zoo("resnet50", {"pixels": (32, 3, 224, 224)}, _IMAGES, pixels=(4, 3, 128, 128)),
    "vit_base": _of_zoo(
        "vit_base",
        {"pixels": (8, 3, 224, 224)},
        {"image": 96, "layers": 6, "width": 128, "heads": 4, "classes": 10},
        pixels=(16, 3, 96, 96),
    ),
    "convnext_tiny": _of_zoo(
        "convnext_tiny",
        {"pixels": (16, 3, 224, 224)},
        {"depths": (2, 2, 4, 2), "widths": (24, 48, 96, 192), "classes": 10},
        pixels=(4, 3, 96, 96),
    ),
    "unet": _of_zoo(
        "unet",
        {"pixels": (4, 3, 256, 256), "labels": (4, 256, 256)},
        {"widths": (8, 16, 32, 64, 128)},
        pixels=(2, 3, 128, 128),
        labels=(2, 128, 128),
    ),
    "swin_tiny": TorchNetwork(
        "bench.torch_networks.Swin",
        {"depths": (2, 2, 6, 2), "width": 96, "head": 32, "window": 7},
        {"pixels": (16, 3, 224, 224)},
        {"depths": (2, 2, 2), "width": 32},
        {"pixels": (2, 3, 112, 112)},
    ),
    "bert_base": _of_zoo("bert_base", {"tokens": (8, 512)}, _TEXT, tokens=(8, 128)),
    "bert_base_dropout": _written("Dropped", {**_BERT, "norm_first": False}, (8, 512), _TEXT),
    "gpt2_small": _of_zoo("gpt2_small", {"tokens": (8, 512)}, _TEXT, tokens=(8, 128)),
    "gpt2_small_dropout": _written("Dropped", {**_GPT2, "norm_first": True}, (8, 512), _TEXT),
    "t5_small": _written(
        "T5",
        {"vocabulary": 32128, "width": 512, "layers": 6, "heads": 8, "hidden": 2048},
        (8, 512),
        {"vocabulary": 512, "width": 64, "layers": 3, "heads": 4, "hidden": 256},
    ),
    "llama_1b": _of_zoo(
        "llama_1b",
        {"tokens": (1, 2048)},
        {"vocabulary": 512, "width": 128, "layers": 6, "heads": 8, "key_heads": 2, "hidden": 344},
        tokens=(8, 128),
    ),
    "decoder_32": TorchNetwork(
        "app.zoo.networks.language.Llama",
        _DECODER,
        {"tokens": (1, 2048)},
        {"vocabulary": 512, "width": 64, "heads": 4, "key_heads": 4, "hidden": 172},
        {"tokens": (4, 128)},
        dtype=torch.bfloat16,
    ),
    "experts": _written(
        "Mixture",
        {"vocabulary": 32000, "longest": 1024, "width": 768, "layers": 12, "heads": 12, "experts": 8},
        (4, 512),
        {"vocabulary": 512, "width": 64, "layers": 4, "heads": 4},
    ),
    "mamba": _written(
        "Mamba",
        {"vocabulary": 50280, "width": 768, "layers": 8},
        (8, 32),
        {"vocabulary": 512, "width": 32, "layers": 2},
    ),
    "lstm_dropout": _written(
        "DroppedLstm", {"vocabulary": 10000, "width": 650, "layers": 2}, (20, 64), {"vocabulary": 512, "width": 32}
    ),
}


class WithLoss(nn.Module):
    """A network followed by a loss, if it does not return one."""

    def __init__(self, module: nn.Module, has_loss: bool):
        super().__init__()
        self.module, self.has_loss = module, has_loss

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.module(**inputs)
        return output if self.has_loss else output.float().square().mean()


def instance(name: str, full: bool) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """(module that returns a loss, inputs) of a network in training mode."""
    return made(NETWORKS[name], full)


def made(network: TorchNetwork, full: bool, batch: int | None = None) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """(module that returns a loss, inputs) in training mode; `batch` replaces the one of the instance."""
    torch.manual_seed(0)
    module = _made(network, network.arguments if full else {**network.arguments, **network.small})
    shapes = network.inputs if full else {**network.inputs, **network.small_inputs}
    sized = {key: shape if batch is None else (batch, *shape[1:]) for key, shape in shapes.items()}
    return module, {key: _input(key, shape, network.dtype) for key, shape in sized.items()}


def fake_instance(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A network at full size without memory: parameters, buffers and inputs are fake tensors."""
    network = NETWORKS[name]
    with torch.device("meta"):
        module = _made(network, network.arguments)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[torch.Tensor, torch.Tensor] = {}  # tied weights stay tied
    with mode:
        for part in module.modules():
            for table in (part._parameters, part._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        table[key] = made[tensor] = made[tensor] if tensor in made else _on_cpu(tensor)
        return module, {key: _input(key, shape, network.dtype) for key, shape in network.inputs.items()}


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def _made(network: TorchNetwork, arguments: Mapping[str, Any]) -> nn.Module:
    file, _, title = network.module.rpartition(".")
    default = torch.get_default_dtype()
    torch.set_default_dtype(network.dtype)
    try:
        return WithLoss(getattr(importlib.import_module(file), title)(**arguments), network.has_loss)
    finally:
        torch.set_default_dtype(default)


def _input(key: str, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype) if key == "pixels" else torch.randint(0, 2, shape)
