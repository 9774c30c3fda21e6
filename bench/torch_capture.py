"""PyTorch networks at full size, without memory: seconds from the module to a plan, and plans at five budgets.

    python bench/torch_capture.py                                       # all networks
    python bench/torch_capture.py --only gpt2_small,decoder_32 --budgets 50% --seconds 5

Parameters and inputs are fake tensors. Columns: tasks of the step; seconds to record it; for each budget the seconds to
plan it, `--seconds` of them for the search, extra time, how far from optimal it may be, and status. Seconds are those
of the wall, in parentheses those of the processor. Each network has a process of its own, whose imports are not
counted, and its first plan loads the compiled kernels. Needs the extra `torch`. Exits 1 if a network cannot be
recorded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import remat.torch
from bench.run import add_only, machine
from bench.torch_instances import NETWORKS, fake_instance

COLUMNS = ("network", "tasks", "recorded in", "budget", "planned in", "extra time", "gap", "status")
T = TypeVar("T")


def timed(call: Callable[[], T]) -> tuple[T, str]:
    """What a call returns, and its seconds: of the wall, and of the processor."""
    wall, processor = time.monotonic(), time.process_time()
    found = call()
    return found, f"{time.monotonic() - wall:.1f} ({time.process_time() - processor:.1f})"


def recorded(name: str) -> remat.torch.Capture:
    """The training step of a network at full size."""
    module, inputs = fake_instance(name)
    return remat.torch.capture(module, **inputs)


def rows(name: str, budgets: list[str], seconds: float) -> list[tuple[str, ...]]:
    """A row for each budget."""
    torch.set_num_threads(1)
    captured, recording = timed(lambda: recorded(name))
    found: list[tuple[str, ...]] = []
    for budget in budgets:
        report, planning = timed(partial(captured.plan, budget, search_seconds=seconds))
        gap = "" if report.gap is None else f"{report.gap:.2%}"
        tasks = str(len(captured.document["nodes"]))
        found.append((name, tasks, recording, budget, planning, f"{report.overhead:.2%}", gap, report.status))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_only(parser, NETWORKS)
    parser.add_argument("--budgets", default="90%,80%,70%,60%,50%")
    parser.add_argument("--seconds", type=float, default=5.0, help="search time of each plan")
    given = parser.parse_args()
    failed = False
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in given.only:
            try:
                found = pool.apply(rows, (name, given.budgets.split(","), given.seconds))
            except remat.torch.NotCaptured as error:
                failed = True
                found = [(name, str(error))]
            for row in found:
                print("| " + " | ".join(row) + " |", flush=True)
    print(f"{machine()}, load {os.getloadavg()[1]:.1f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
