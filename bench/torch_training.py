"""Training in PyTorch under plans: numbers bit for bit, peak and time measured beside the prediction.

    python bench/torch_training.py                                   # small instances, 3 budgets
    python bench/torch_training.py --only resnet18 --budgets 95%,90%,80%,70%,65%,60%,55%,50%,45%,40%
    python bench/torch_training.py --full --only gpt2_small          # full depth and width; needs memory

Each network trains three steps with SGD, without and with each plan, in a process of its own. Columns: status of the
plan; peak measured beyond what is held before the step, in MiB, and how far the predictions are off, with measured
workspaces and without; extra time predicted and measured, in seconds of the processor; whether losses, gradients,
buffers and the state of the generator are equal bit for bit. Below each network: tasks of the step, seconds of the
processor to record it, to profile it and to plan, and the rank correlation of predicted and measured peaks and times.
Needs the extra `torch`. Exits 1 if something is not equal.
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

import numpy as np
import torch

import remat.torch
from bench.torch_instances import NETWORKS, instance
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.problem.plan import Candidate
from planner.request.plan_request import parse_request
from remat.report import Report
from tests.torch.steps import equal, peak_bytes

STEPS, TIMED = 3, 3
MIB = 2**20
Row = dict[str, Any]


def trained(step: Callable[[], Any], module: Any) -> list[torch.Tensor]:
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
    """(peak in bytes, seconds of the processor of the fastest of some) of a step after a warm one."""

    def once() -> None:
        module.zero_grad(set_to_none=True)
        step().backward()

    once()
    peak = peak_bytes(once)
    best = float("inf")
    for _ in range(TIMED):
        began = time.process_time()
        once()
        best = min(best, time.process_time() - began)
    return peak, best


def rows(name: str, budgets: list[str], full: bool, seconds: float) -> tuple[list[Row], str]:
    """A row for each budget, and the line below them."""
    torch.set_num_threads(1)
    module, inputs = instance(name, full)
    clock = [time.process_time()]
    unmeasured = remat.torch.capture(module, **inputs)
    clock.append(time.process_time())
    captured = remat.torch.capture(module, **inputs, measure=True)
    clock.append(time.process_time())
    reports = [captured.plan(budget, search_seconds=seconds) for budget in budgets]
    clock.append(time.process_time())
    held = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers(), *inputs.values()))
    plain = copy.deepcopy(module)
    expected = trained(lambda: plain(**inputs), plain)
    _, plain_seconds = measured(lambda: plain(**inputs), plain)
    found, peaks, times = [], [], []
    for budget, report in zip(budgets, reports, strict=True):
        given = copy.deepcopy(module)
        planned = remat.torch.optimize(given, inputs, plan=report)
        same = equal(expected, trained(lambda run=planned: run(**inputs), planned))  # type: ignore[misc]
        peak, taken = measured(lambda run=planned: run(**inputs), planned)  # type: ignore[misc]
        predicted = report.peak_bytes - held
        peaks.append((predicted, peak))
        times.append((report.overhead, taken))
        found.append(
            {
                "network": name,
                "budget": budget,
                "status": report.status,
                "peak": f"{peak / MIB:.1f}",
                "off": f"{peak / predicted - 1:+.1%}",
                "without profile": f"{peak / (peak_on(unmeasured.to_json().encode(), report) - held) - 1:+.1%}",
                "extra": f"{report.overhead:.1%}",
                "measured": f"{taken / plain_seconds - 1:+.1%}",
                "equal": "yes" if same else "NO",
            }
        )
        torch._dynamo.reset()
    tasks = len(captured.document["nodes"])
    recorded, profiled, planned_in = np.diff(clock)
    ranks = ", ".join(f"{of} {correlation(pairs):.2f}" for of, pairs in (("peak", peaks), ("time", times)))
    below = f"{name}: {tasks} tasks; recorded in {recorded:.1f} s, profiled in {profiled - recorded:.1f} s, planned in "
    return found, below + f"{planned_in / len(budgets):.1f} s; rank correlation of {len(budgets)} plans: {ranks}"


def correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's rank correlation; plans with one predicted figure count once, with the mean of what was measured."""
    groups: dict[float, list[float]] = {}
    for predicted, found in pairs:
        groups.setdefault(predicted, []).append(found)
    if len(groups) < 3:
        return float("nan")
    means = [sum(group) / len(group) for group in groups.values()]
    ranks = (np.argsort(np.argsort(values)) for values in (list(groups), means))
    return float(np.corrcoef(*ranks)[0, 1])


def peak_on(document: bytes, report: Report) -> int:
    """Peak of a plan by another document of the same step."""
    request = {"runtime": "torch-eager-cpu", "device": "cpu-reference", "execute": "no", "budget": "100%"}
    formulation = formulate(load(document), parse_request(request))
    number = {formulation.lowered.name_of_task(task): task for task in range(formulation.lowered.problem.tasks)}
    order = np.array([number[name] for name, _ in report.order if name in number], np.int32)  # views are no tasks
    return formulation.counted_peak(formulation.plan_of(Candidate(order, "given")))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks of bench/torch_instances.py")
    parser.add_argument("--budgets", default="80%,60%,45%")
    parser.add_argument("--seconds", type=float, default=10.0, help="search time of each plan")
    parser.add_argument("--full", action="store_true", help="networks at their full size")
    given = parser.parse_args()
    failed = False
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in given.only.split(","):
            found, below = pool.apply(rows, (name, given.budgets.split(","), given.full, given.seconds))
            for row in found:
                print("| " + " | ".join(map(str, row.values())) + " |", flush=True)
                failed |= row["equal"] != "yes"
            print(below, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
