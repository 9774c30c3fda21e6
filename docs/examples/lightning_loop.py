"""Lightning within a budget: a callback that plans one submodule when fitting begins."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import remat.torch


class Plan(lightning.Callback):
    """Trains a submodule within a budget; its step is planned at the first batch, as it arrives."""

    def __init__(self, name: str, budget: str, **request: Any):
        self.name, self.backend = name, remat.torch.backend(budget, **request)

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        module.get_submodule(self.name).compile(backend=self.backend, fullgraph=True, dynamic=False)

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        print(*self.backend.reports, sep="\n")


class Network(nn.Module):
    """Two layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(x)
        return scores


class Classifier(lightning.LightningModule):
    """What training needs, around the network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def training_step(self, batch: Any, _: int) -> Any:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


def main(budget: str = "90%") -> None:
    lightning.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(128, 64), torch.randint(0, 10, (128,)))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[Plan("network", budget, search_seconds=2)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(data, 32))


if __name__ == "__main__":
    main()
