"""Networks of the zoo and their sources; does not import torch.

A network is a file of the onnx wheel, or a module of `app/zoo/networks` with the dimensions of its paper. Named
lengths are symbolic dimensions of the file; `batches` and `dims` list the lengths to plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

ONNX_LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
PIXELS = {"pixels": ("batch", 3, 224, 224)}
TOKENS = {"tokens": ("batch", "sequence")}


@dataclass(frozen=True, slots=True)
class ZooNetwork:
    """One network. `module` is a class of `app.zoo.networks`, empty for a file of the onnx wheel."""

    name: str
    source: str
    batches: tuple[int, ...]
    file: Path | None = None
    module: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)  # pixels are float32, others int64
    output: str = "logits"
    dims: Mapping[str, int] = field(default_factory=dict)


def _resnet(name: str, block: str, depths: tuple[int, ...]) -> ZooNetwork:
    paper = "He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, 2016, table 1"
    return ZooNetwork(name, paper, (8, 64), None, "vision.ResNet", {"block": block, "depths": depths}, PIXELS)


def _written() -> list[ZooNetwork]:
    return [
        _resnet("resnet18", "Basic", (2, 2, 2, 2)),
        _resnet("resnet50", "Bottleneck", (3, 4, 6, 3)),
        _resnet("resnet101", "Bottleneck", (3, 4, 23, 3)),
        ZooNetwork(
            "vit_base",
            "Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, table 1, ViT-Base at patches of 16",
            (8, 64),
            None,
            "vision.ViT",
            {"image": 224, "patch": 16, "width": 768, "layers": 12, "heads": 12},
            PIXELS,
        ),
        ZooNetwork(
            "convnext_tiny",
            "Liu et al., A ConvNet for the 2020s, 2022, section 3, ConvNeXt-T",
            (8, 64),
            None,
            "vision.ConvNeXt",
            {"depths": (3, 3, 9, 3), "widths": (96, 192, 384, 768)},
            PIXELS,
        ),
        ZooNetwork(
            "unet",
            "Ronneberger, Fischer, Brox, U-Net, 2015, figure 1; padded, with batch norms",
            (4, 16),
            None,
            "vision.UNet",
            {"widths": (64, 128, 256, 512, 1024), "classes": 2},
            {"pixels": ("batch", 3, 256, 256), "labels": ("batch", 256, 256)},
            "loss",
        ),
        ZooNetwork(
            "bert_base",
            "Devlin et al., BERT, 2019, section 3, BERT-Base with its masked-language-model head",
            (8, 32),
            None,
            "language.Bert",
            {"vocabulary": 30522, "longest": 512, "width": 768, "layers": 12, "heads": 12},
            TOKENS,
            dims={"sequence": 512},
        ),
        ZooNetwork(
            "gpt2_small",
            "Radford et al., Language Models are Unsupervised Multitask Learners, 2019, table 2",
            (4, 8),
            None,
            "language.Gpt2",
            {"vocabulary": 50257, "longest": 1024, "width": 768, "layers": 12, "heads": 12},
            TOKENS,
            dims={"sequence": 1024},
        ),
        ZooNetwork(
            "llama_1b",
            "Touvron et al., LLaMA, 2023, section 2; sizes of Zhang et al., TinyLlama, 2024, table 1",
            (1, 4),
            None,
            "language.Llama",
            {"vocabulary": 32000, "width": 2048, "layers": 22, "heads": 32, "key_heads": 4, "hidden": 5632},
            TOKENS,
            dims={"sequence": 2048},
        ),
        ZooNetwork(
            "lstm_medium",
            "Zaremba, Sutskever, Vinyals, Recurrent Neural Network Regularization, 2014, section 4.1",
            (20, 80),
            None,
            "language.Lstm",
            {"vocabulary": 10000, "width": 650, "layers": 2},
            {"tokens": ("batch", 35)},
        ),
    ]


def networks() -> dict[str, ZooNetwork]:
    """All networks by name, those of the onnx wheel first."""
    version = onnx.__version__
    light = [
        ZooNetwork(path.stem, f"onnx {version}, backend/test/data/light/{path.name}", (1, 16), path)
        for path in sorted(ONNX_LIGHT_FOLDER.glob("light_*.onnx"))
    ]
    return {network.name: network for network in (*light, *_written())}
