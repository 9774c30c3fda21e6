"""Models of torch.nn exported for `bench/ort_training.py`: large batches, and PyTorch's losses and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import remat
from bench.exported import Case, WithLoss, by_content, draw_distinct, exported, float32_noise
from bench.exported_models import MODELS as MODELS

FIRST_BATCH = 64  # whose peak says how large a batch is, and whose numbers are compared: sums over more rows are noise
RATE = 0.05
ONLY_DYNAMO = {"bilinear", "decoder", "gated"}  # Bilinear and RMSNorm, which the legacy exporter does not know


@dataclass(frozen=True)
class Exported:
    """A model's file, the data of a step, and PyTorch's numbers."""

    model: Path
    data: Path
    losses: list[float]  # of three steps of SGD, in float64
    gradients: dict[str, np.ndarray]  # of the first step, in float64
    noises: dict[str, float]  # 2-norm of the noise of float32 in them
    contents: dict[str, np.ndarray]

    def errors(self, losses: Sequence[float], gradients: Mapping[str, np.ndarray]) -> tuple[float, float, float]:
        """(error of the last loss, error of the gradients, its noise), relative; a gradient by its parameter."""
        file = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(self.model).graph.initializer}
        ours, seen = by_content(self.contents, [(file[name], array) for name, array in gradients.items()])
        largest = max(float(np.linalg.norm(each)) for each in self.gradients.values())
        error, noise = 0.0, 1e-6
        for name, expected in self.gradients.items():
            norm = max(float(np.linalg.norm(expected)), 1e-2 * largest)
            apart = float(np.linalg.norm((ours[name] - expected)[seen[name]])) / norm
            rounding = max(self.noises[name] / norm, 1e-6)
            if apart / rounding >= error / noise:
                error, noise = apart, rounding
        return abs(losses[-1] / self.losses[-1] - 1), error, noise


def batch_for(name: str, peak_bytes: int, folder: Path) -> int:
    """The batch whose step takes about `peak_bytes`."""
    path, *_ = _export(name, FIRST_BATCH, folder)
    taken = remat.plan(path, "100%", loss="loss", runtime="ort", iterations=1, execute="no", layout="none").peak_bytes
    return max(2, round(FIRST_BATCH * peak_bytes / taken))


def exported_model(name: str, batch: int, folder: Path) -> Exported:
    """The model exported for a batch."""
    path, model, x, labels = _export(name, batch, folder)
    data = folder / f"data{batch}.npz"
    np.savez(data, x=x.numpy(), labels=labels.numpy())
    contents = {key: p.detach().numpy().copy() for key, p in model.named_parameters()}
    losses = _losses(name, model, x, labels)
    noises, gradients = float32_noise(model, x, labels)
    return Exported(path, data, losses, gradients, noises, contents)


def _export(name: str, batch: int, folder: Path) -> tuple[Path, nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = MODELS[name]()
    draw_distinct(model, np.random.default_rng(0))
    repeats = -(-batch // len(x))
    x = torch.cat([x if not x.is_floating_point() else x + 0.1 * torch.randn_like(x) for _ in range(repeats)])
    x = x[:batch]
    with torch.no_grad():
        scores = model(x)
    shape = list(scores.shape)
    classes = shape.pop(1 if scores.dim() == 4 else scores.dim() - 1)
    labels = torch.randint(0, classes, shape)
    path = folder / f"{name}{batch}.onnx"
    exporter = "dynamo" if name in ONLY_DYNAMO else "legacy"
    path.write_bytes(exported(Case(name, exporter, "train", "loss"), model, x, labels))
    return path, model, x, labels


def _losses(name: str, model: nn.Module, x: Tensor, labels: Tensor) -> list[float]:
    """Losses of three steps of SGD in float64, of a copy of the model."""
    torch.manual_seed(0)
    copy = MODELS[name]()[0].double()
    copy.load_state_dict(model.state_dict())
    wide = x.double() if x.is_floating_point() else x
    optimizer = torch.optim.SGD(copy.parameters(), lr=RATE)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = WithLoss(copy)(wide, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
