"""Training in PyTorch under plans: numbers bit for bit, peak and time measured beside the prediction.

    python bench/torch_training.py                                   # small instances of the zoo's networks, 2 budgets
    python bench/torch_training.py --only resnet18 --budgets 70%,50%,30%
    python bench/torch_training.py --full --only gpt2_small          # full depth and width; needs memory

Each network trains three steps with SGD, without and with a plan, each in a process of its own. Columns: tasks of the
step; seconds to record and measure, and to plan; peak without a plan and with it, in MiB beyond what is held before the
step, and how far the prediction is off; extra time, predicted and measured; whether losses, gradients, buffers and the
state of the generator are equal bit for bit. Needs the extra `torch`. Exits 1 if something is not equal.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import remat.torch
from bench.torch_instances import SMALL, instance
from tests.torch.steps import peak_bytes

STEPS = 3
MIB = 2**20


def trained(step: Callable[[], Any], module: Any) -> list[Any]:
    """Losses and gradients of some steps of SGD, then buffers and the state of the generator."""
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    torch.manual_seed(3)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = step()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        optimizer.step()
    return [*found, *(buffer.clone() for buffer in module.buffers()), torch.get_rng_state()]


def measured(step: Callable[[], Any], module: Any) -> tuple[int, float]:
    """(peak in bytes, seconds of the fastest of three) of a step after a warm one."""

    def once() -> None:
        module.zero_grad(set_to_none=True)
        step().backward()

    once()
    peak = peak_bytes(once)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - began)
    return peak, best


def row(name: str, budget: str, full: bool, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    torch.set_num_threads(1)
    plain, inputs = instance(name, full)
    began = time.perf_counter()
    captured = remat.torch.capture(plain, **inputs, measure=True)
    recorded = time.perf_counter()
    report = captured.plan(budget, search_seconds=seconds)
    planned_at = time.perf_counter()
    planned = remat.torch.optimize(copy.deepcopy(plain), inputs, plan=report)
    held = sum(tensor.nbytes for tensor in (*plain.parameters(), *plain.buffers(), *inputs.values()))
    same = all(
        torch.equal(a, b)
        for a, b in zip(
            trained(lambda: plain(**inputs), plain), trained(lambda: planned(**inputs), planned), strict=True
        )
    )
    before, plain_seconds = measured(lambda: plain(**inputs), plain)
    peak, planned_seconds = measured(lambda: planned(**inputs), planned)
    return {
        "model": name,
        "budget": budget,
        "tasks": len(captured.document["nodes"]),
        "record s": f"{recorded - began:.1f}",
        "plan s": f"{planned_at - recorded:.1f}",
        "status": report.status,
        "before": f"{before / MIB:.1f}",
        "peak": f"{peak / MIB:.1f}",
        "off": f"{peak / (report.peak_bytes - held) - 1:+.1%}",
        "extra": f"{report.overhead:.1%}",
        "measured": f"{planned_seconds / plain_seconds - 1:+.1%}",
        "equal": "yes" if same else "NO",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(SMALL), help="networks of the zoo, separated by commas")
    parser.add_argument("--budgets", default="70%,50%")
    parser.add_argument("--seconds", type=float, default=10.0, help="search time of each plan")
    parser.add_argument("--full", action="store_true", help="networks at their full size")
    given = parser.parse_args()
    failed = False
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in given.only.split(","):
            for budget in given.budgets.split(","):
                found = pool.apply(row, (name, budget, given.full, given.seconds))
                print("  ".join(f"{key} {value}" for key, value in found.items()), flush=True)
                failed |= found["equal"] != "yes"
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
