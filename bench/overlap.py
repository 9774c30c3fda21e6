"""Overhead of a step of tensor and sequence parallelism, with collectives in line with compute and beside it.

    python bench/overlap.py                       # 10 s a plan, about two minutes
    python bench/overlap.py --seconds 20

The step is captured from PyTorch without memory and without other processes: 8 layers of width 2,048 over 4 ranks. The
inputs of layers are gathered from all ranks, their results are summed and scattered (Korthikanti et al., "Reducing
Activation Recomputation in Large Transformer Models", MLSys 2023, section 4.2). Plans may recompute collectives. Prints
the overhead of both plans over the step as it is, and what compute waits for collectives. Plans are checked before they
are printed.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import remat.torch
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

WIDTH, HEAD, LAYERS, RANKS, BATCH, LENGTH = 2048, 128, 8, 4, 4, 2048
DEVICE = {"like": "a100-80gb", "link_bandwidth": 100e9, "link_latency": 1e-5}
BUDGETS = ("100%", "70%", "50%")


class Layer(nn.Module):
    """Attention and two linear layers; a rank has the weights of its heads and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH // RANKS), nn.Linear(WIDTH // RANKS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH // RANKS), nn.Linear(4 * WIDTH // RANKS, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + scattered(self.out(self.attention(gathered(self.norms[0](x)))))
        return x + scattered(self.down(nn.functional.gelu(self.up(gathered(self.norms[1](x))))))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        heads = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


def gathered(x: torch.Tensor) -> torch.Tensor:
    return collectives.all_gather_tensor_autograd(x, 1, dist.group.WORLD)


def scattered(x: torch.Tensor) -> torch.Tensor:
    return collectives.reduce_scatter_tensor_autograd(x, "sum", 1, dist.group.WORLD)


class Step(nn.Module):
    """Layers on a rank's part of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layers(x).square().mean()
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    with FakeTensorMode(allow_non_fake_inputs=True):
        captured = remat.torch.capture(Step(), torch.randn(BATCH, LENGTH // RANKS, WIDTH, requires_grad=True))
    step = captured.to_json().encode()
    for budget in BUDGETS:
        inline, beside = (planned(step, budget, chosen.seconds, overlap) for overlap in (False, True))
        overlap, whole = beside["overlap"], beside["baseline"]["seconds"]
        print(
            f"{budget}: in line {inline['plan']['seconds'] / whole - 1:+.2%}, beside compute "
            f"{beside['plan']['overhead']:+.2%} ({beside['plan']['status']}); collectives "
            f"{overlap['communication_seconds'] * 1e3:.1f} ms, compute waits {overlap['waiting_seconds'] * 1e3:.1f} "
            f"ms, without a plan {overlap['baseline_waiting_seconds'] * 1e3:.1f} of {whole * 1e3:.1f} ms",
            flush=True,
        )


def planned(step: bytes, budget: str, seconds: float, overlap: bool) -> dict[str, Any]:
    request = {"budget": budget, "search_seconds": seconds, "device": DEVICE, "runtime": "torch-eager"}
    return solve(step, parse_request({**request, "collectives": "repeated", "overlap": overlap})).report


if __name__ == "__main__":
    main()
