"""Training under a hard cap of memory: plans beside eager, checkpoints and PyTorch's memory budgets.

    python bench/torch_caps.py                                     # networks of MODELS; 30, 50 and 70%
    python bench/torch_caps.py --only gpt2_small --caps 50% --largest 2

A cap is a share of the peak that eager has at the batch of the instance, and covers all of a step: parameters, buffers,
inputs, gradients, activations and workspaces. Every way to train runs 20 steps under each cap; it runs out of memory if
the events of PyTorch's allocator show more than the cap at any time. PyTorch's budgets are tried from the fastest to
the smallest, and with batch norms through PyTorch's decompositions. Columns: peak in MiB, or `out` of memory, or that
there is no plan, with the lowest peak found and the proven minimum; samples a second (process time of the fastest of
30 more steps, one thread); largest batch within the cap, of multiples of the instance's up to `--largest`, a half and
a quarter of it; whether the gradients of the first step are those of eager bit for bit, or how far they are off as a
share of their norm. Runs on a CPU, in a process that keeps its memory (`remat.torch.keep_memory`), for all ways alike;
needs the extra `torch`. Exits 1 if a plan runs out of memory, or its gradients differ.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch._functorch import config, partitioners

import remat.torch
from bench.run import add_only, machine
from bench.torch_instances import NETWORKS, made
from bench.torch_peers import with_checkpoints
from remat.torch.step.aot import eager_backend
from tests.torch.steps import equal, peak_bytes

#: Narrow networks. Convolutions at the largest resolution limit ResNet and U-Net: no plan reaches 30% there.
MODELS = {
    "gpt2_small": NETWORKS["gpt2_small"],
    "llama_1b": NETWORKS["llama_1b"],
    "resnet50": replace(NETWORKS["resnet50"], small_inputs={"pixels": (16, 3, 128, 128)}),
    "unet": NETWORKS["unet"],
}
BUDGETS = (0.7, 0.5, 0.3, 0.2, 0.1)
STEPS, TIMED = 20, 30
MIB = 2**20
Inputs = dict[str, torch.Tensor]
Row = dict[str, str]
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
    has_batch_norm = any(isinstance(part, nn.BatchNorm2d) for part in module.modules())
    # Autograd refuses recomputed batch norms, unless decompositions take them apart.
    plain = eager_backend(partitioners.min_cut_rematerialization_partition)
    for budget in BUDGETS:
        torch._dynamo.reset()
        backend = "aot_eager_decomp_partition" if has_batch_norm else plain
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

    def train(steps: int) -> None:
        for _ in range(steps):
            step().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    step().backward()
    gradients += [p.grad.clone() for p in module.parameters() if p.grad is not None]
    optimizer.zero_grad(set_to_none=True)
    for count in (1, steps):  # one step tells most attempts that fail
        peak = held + peak_bytes(lambda count=count: train(count))  # type: ignore[misc]
        if peak > cap:
            raise OutOfMemory(f"{peak} bytes, {cap} allowed")
    for _ in range(TIMED):
        began = time.process_time()
        train(1)
        fastest = min(fastest, time.process_time() - began)
    return Trained(peak, fastest, gradients)


def under_cap(name: str, way: Way, batch: int, cap: int, seconds: float, steps: int = STEPS) -> Trained | str:
    """The first attempt of a way that stays within the cap, or why there is none."""
    module, inputs = made(MODELS[name], full=False, batch=batch)
    held = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *inputs.values()))
    state = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
    try:
        for step in way(module, inputs, cap, seconds):
            restore(module, state)  # an attempt before has trained
            with contextlib.suppress(OutOfMemory):
                return trained(step, module, held, cap, steps)
    except remat.torch.BudgetNotMet as error:
        report = error.report
        assert report is not None  # without one with Inductor only
        return f"no plan below {report.peak_bytes / MIB:.1f}, proven {report.bound['peak_bytes'] / MIB:.1f}"
    return "out"


def restore(module: nn.Module, state: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give parameters and buffers the contents that they had, and drop gradients."""
    module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for tensor, before in state:
            tensor.copy_(before)


def largest(name: str, way: Way, cap: int, seconds: float, most: int, found: Trained | str) -> int:
    """The largest batch within the cap, 0 if there is none, from what was found at the batch of the instance.

    Tried in turn until one fails: multiples of that batch if it fits; else a half and a quarter of it until one fits.
    """
    base = batch_of(name)
    fits = isinstance(found, Trained)
    best = base if fits else 0
    for batch in [base * k for k in range(2, most + 1)] if fits else [base // 2, base // 4]:
        if isinstance(under_cap(name, way, batch, cap, seconds, steps=1), Trained):
            best = batch
            if not fits:
                break
        elif fits:
            break
    return best


def difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """How far gradients are off, as a share of their norm; 0 if they are equal bit for bit."""
    if equal(found, expected):
        return 0.0
    off = sum(float((a - b).double().square().sum()) for a, b in zip(found, expected, strict=True))
    return math.sqrt(off / sum(float(b.double().square().sum()) for b in expected))


def batch_of(name: str) -> int:
    """The batch of the small instance of a network."""
    return next(iter(MODELS[name].small_inputs.values()))[0]


def rows(name: str, given: argparse.Namespace) -> Iterator[Row]:
    """A row for each cap and way to train."""
    batch = batch_of(name)
    reference = under_cap(name, eager, batch, sys.maxsize, 0, steps=3)
    assert isinstance(reference, Trained)
    for cap in given.caps.split(","):
        allowed = int(reference.peak * float(cap.strip("%")) / 100)
        for title, way in WAYS.items():
            found = under_cap(name, way, batch, allowed, given.seconds)
            most = largest(name, way, allowed, given.seconds, given.largest, found) if given.largest else 0
            row = {"network": name, "cap": f"{cap}, {allowed / MIB:.1f}", "way": title, "gradients": ""}
            if isinstance(found, Trained):
                off = difference(found.gradients, reference.gradients)
                row |= {"peak": f"{found.peak / MIB:.1f}", "samples": f"{batch / found.seconds:.2f}"}
                row["gradients"] = "equal" if off == 0 else f"off by {off:.0e}"
            else:
                row |= {"peak": found, "samples": ""}
            yield row | {"largest": str(most) if given.largest else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_only(parser, MODELS)
    parser.add_argument("--caps", default="70%,50%,30%", help="shares of the eager peak")
    parser.add_argument(
        "--largest", type=int, default=4, help="largest batch tried, in batches of the instance; 0: none"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="search time of each plan")
    given = parser.parse_args()
    torch.set_num_threads(1)
    remat.torch.keep_memory()
    failed = False
    print("| network | cap, MiB | way | peak MiB | samples a second | largest batch | gradients |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in given.only:
        for row in rows(name, given):
            columns = ("network", "cap", "way", "peak", "samples", "largest", "gradients")
            print("| " + " | ".join(row[column] for column in columns) + " |", flush=True)
            failed |= row["way"] == "plan" and (row["gradients"].startswith("off") or row["peak"] == "out")
    print(f"{machine()}, load {os.getloadavg()[1]:.1f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
