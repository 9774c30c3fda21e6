"""How tight the layouts pack: published instances at their capacity, and how long the first answer takes.

    python -m bench.layouts [--seconds 10]

Instances are those of MiniMalloc (ASPLOS 2023), each of which can be packed into the capacity its name says.
Exits 1 when one is not.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np

from bench.catalogue import FOLDER
from planner.layout import place
from planner.layout.canonical_kernels import KERNELS
from planner.problem import Csr
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes, Order, Score

ALIGNMENT = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each instance with the layout `best`")
    seconds = parser.parse_args().seconds
    KERNELS.compiled()
    missed = 0
    print(
        f"{'instance':>12} {'buffers':>8} {'capacity':>9} {'bytes by fast':>14} {'s':>6} {'bytes by best':>14} {'s':>6}"
    )
    for file in sorted((FOLDER / "layout").glob("*.csv")):
        name, capacity = file.name.removesuffix(".csv").split(".")
        lives, size, steps = read(file)
        fast, fast_seconds = measured("fast", lives, size, steps, seconds)
        best, best_seconds = measured("best", lives, size, steps, seconds)
        missed += best > int(capacity)
        print(
            f"{name:>12} {len(size):>8} {capacity:>9} {fast:>14} {fast_seconds:>6.2f} {best:>14} {best_seconds:>6.2f}",
            flush=True,
        )
    return 1 if missed else 0


def read(file: Path) -> tuple[Lifetimes, np.ndarray, int]:
    """(lifetimes, bytes per buffer, steps) of an instance; steps are the points in time at which something changes."""
    with file.open() as rows:
        table = np.array([[int(row[name]) for name in ("lower", "upper", "size")] for row in csv.DictReader(rows)])
    points = np.unique(table[:, :2])
    start, stop = np.searchsorted(points, table[:, 0]), np.searchsorted(points, table[:, 1])
    none = np.full(len(table), -1, np.int64)
    nothing = Csr.empty(len(points))
    return Lifetimes(np.arange(len(table)), start, start, stop, none, nothing, nothing), table[:, 2].copy(), len(points)


def measured(layout: str, lives: Lifetimes, size: np.ndarray, steps: int, seconds: float) -> tuple[int, float]:
    """(bytes of the arena, seconds it took)."""
    began = time.perf_counter()
    _, arena = place(layout, lives, size, np.zeros(steps, np.int64), ALIGNMENT, Monitor(_unused, seconds))
    return arena, time.perf_counter() - began


def _unused(order: Order) -> Score:
    raise NotImplementedError("a layout judges no order")


if __name__ == "__main__":
    sys.exit(main())
