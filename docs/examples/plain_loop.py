"""A training loop in plain PyTorch within a budget: one line more."""

from __future__ import annotations

import torch
from torch import nn

import remat.torch


class Network(nn.Module):
    """Two layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(x)
        return scores


def main(budget: str = "90%") -> None:
    torch.manual_seed(0)
    model = Network()
    batches = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(4)]

    model = remat.torch.optimize(model, (batches[0][0],), budget=budget, search_seconds=2)

    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}", remat.torch.report_of(model))


if __name__ == "__main__":
    main()
