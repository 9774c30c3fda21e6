"""Training under a hard cap of memory: plans beside eager, checkpoints and PyTorch's memory budgets.

    python bench/torch_caps.py                                     # small decoder, resnet18, small ViT; 30, 50 and 70%
    python bench/torch_caps.py --only resnet18 --caps 50% --largest 2

A cap is a share of the peak that eager has at the batch of the instance, and covers all of a step: parameters, buffers,
inputs, gradients, activations and workspaces. Every way to train runs 20 steps under each cap; it runs out of memory if
the events of PyTorch's allocator show more than the cap at any time. PyTorch's budgets are tried from the fastest to
the smallest. Columns: largest batch within the cap, of multiples of the instance's up to `--largest`, and a half and a
quarter of it; peak in MiB, or `out` of memory, or `no plan`; samples a second (process time of the fastest step, one
thread); whether the gradients of the first step are those of eager, bit for bit. Runs on a CPU, and needs the
extra `torch`. Exits 1 if a plan runs out of memory, or its gradients differ.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch._functorch import config, partitioners

import remat.torch
from bench.torch_instances import SMALL, instance
from bench.torch_peers import with_checkpoints
from remat.torch.step.aot import eager_backend
from tests.torch.steps import equal, peak_bytes

MODELS = ("gpt2_small", "resnet18", "vit_base")
BUDGETS = (0.7, 0.5, 0.3, 0.2, 0.1)
STEPS = 20
MIB = 2**20
Inputs = dict[str, torch.Tensor]
Step = Callable[[], torch.Tensor]
Way = Callable[[nn.Module, Inputs, int, float], Iterator[Step]]


class OutOfMemory(Exception):
    """A step held more than the cap."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What some steps under a cap needed."""

    peak: int
    seconds: float
    gradients: list[torch.Tensor]


def eager(module: nn.Module, inputs: Inputs, cap: int, seconds: float) -> Iterator[Step]:
    yield lambda: module(**inputs)


def checkpoints(module: nn.Module, inputs: Inputs, cap: int, seconds: float) -> Iterator[Step]:
    blocks = with_checkpoints(module)
    if blocks is not None:
        yield lambda: blocks(**inputs)


def budgets(module: nn.Module, inputs: Inputs, cap: int, seconds: float) -> Iterator[Step]:
    for budget in BUDGETS:
        torch._dynamo.reset()
        backend = eager_backend(partitioners.min_cut_rematerialization_partition)
        compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
        with config.patch(activation_memory_budget=budget):
            compiled(**inputs)
        yield lambda compiled=compiled: compiled(**inputs)  # type: ignore[misc]


def plans(module: nn.Module, inputs: Inputs, cap: int, seconds: float) -> Iterator[Step]:
    planned = remat.torch.optimize(module, inputs, cap, search_seconds=seconds)
    yield lambda: planned(**inputs)


WAYS: dict[str, Way] = {"eager": eager, "checkpoint": checkpoints, "budgets": budgets, "plan": plans}


def trained(step: Step, module: nn.Module, held: int, cap: int, steps: int) -> Trained:
    """Train some steps. Raises OutOfMemory."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(module.parameters(), 1e-4)
    gradients: list[torch.Tensor] = []
    fastest = float("inf")

    def all_steps() -> None:
        nonlocal fastest
        for _ in range(steps):
            began = time.process_time()
            optimizer.zero_grad(set_to_none=True)
            step().backward()
            optimizer.step()
            fastest = min(fastest, time.process_time() - began)

    step().backward()
    gradients += [p.grad.clone() for p in module.parameters() if p.grad is not None]
    optimizer.zero_grad(set_to_none=True)
    peak = held + peak_bytes(all_steps)
    if peak > cap:
        raise OutOfMemory(f"{peak} bytes, {cap} allowed")
    return Trained(peak, fastest, gradients)


def under_cap(name: str, way: Way, batch: int, cap: int, seconds: float, steps: int = STEPS) -> Trained | str:
    """The first attempt of a way that stays within the cap, or why there is none."""
    module, inputs = instance(name, full=False, batch=batch)
    held = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *inputs.values()))
    try:
        for step in way(module, inputs, cap, seconds):
            with contextlib.suppress(OutOfMemory):
                return trained(step, module, held, cap, steps)
    except remat.torch.BudgetNotMet:
        return "no plan"
    except RuntimeError:  # PyTorch's budgets with batch norm: "modified by an inplace operation"
        return "fails"
    return "out"


def largest(name: str, way: Way, cap: int, seconds: float, most: int) -> int:
    """The largest batch within the cap, of the multiples and parts of the instance's; 0 if there is none."""
    base, best = SMALL[name][1]["batch"], 0
    for batch in sorted({*(base * k for k in range(1, most + 1)), max(1, base // 2), max(1, base // 4)}):
        if isinstance(under_cap(name, way, batch, cap, seconds, steps=1), str):
            break
        best = batch
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(MODELS), help="networks of the zoo, separated by commas")
    parser.add_argument("--caps", default="70%,50%,30%", help="shares of the eager peak")
    parser.add_argument(
        "--largest", type=int, default=4, help="largest batch tried, in batches of the instance; 0: none"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="search time of each plan")
    given = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for name in given.only.split(","):
        batch = SMALL[name][1]["batch"]
        reference = under_cap(name, eager, batch, sys.maxsize, 0, steps=3)
        assert isinstance(reference, Trained)
        for cap in given.caps.split(","):
            allowed = int(reference.peak * float(cap.strip("%")) / 100)
            for title, way in WAYS.items():
                found = under_cap(name, way, batch, allowed, given.seconds)
                most = largest(name, way, allowed, given.seconds, given.largest) if given.largest else 0
                if isinstance(found, Trained):
                    right = equal(found.gradients, reference.gradients)
                    text = f"{found.peak / MIB:7.1f} MiB  {batch / found.seconds:6.2f} samples/s  "
                    text += "gradients equal" if right else "gradients DIFFER"
                    failed |= title == "plan" and not right
                else:
                    text = f"{found:>7}"
                    failed |= title == "plan" and found == "out"
                print(
                    f"{name:12}  cap {allowed / MIB:7.1f} MiB ({cap})  {title:10}  largest batch {most:3}  "
                    f"batch {batch}: {text}",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
