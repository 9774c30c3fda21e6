"""How tight the layouts pack: published instances, small ones beside every packing, and one of many lifetimes.

    python -m bench.layouts [--seconds 10] [--random 1000] [--lifetimes 100000] [--published FOLDER] [--minimise]

Published instances are those of MiniMalloc (ASPLOS 2023), each of which can be packed into the capacity its name says.
A to F are in bench/instances/layout; FOLDER may have all eleven, as its repository has them in benchmarks/challenging.
Random ones of up to 8 buffers are compared with the smallest of all packings. Many lifetimes, like those of a training
step with rests of random length, are packed within 5 s and compared with the peak. Exits 1 when a published instance is
above its capacity, a small one above the smallest arena, or the large one more than 2% above the peak.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.catalogue import FOLDER
from planner.layout import place
from planner.layout.canonical_kernels import KERNELS
from planner.layout.csv_buffers import pack, parse_buffers
from planner.problem import Csr
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes, Order, Score

ALIGNMENT = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each published instance")
    parser.add_argument("--minimise", action="store_true", help="also the smallest arena found in that time")
    parser.add_argument("--random", type=int, default=1000, help="number of instances of up to 8 buffers")
    parser.add_argument("--lifetimes", type=int, default=100_000, help="buffers of the large instance")
    parser.add_argument("--published", type=Path, default=FOLDER / "layout", metavar="FOLDER", help="NAME.CAPACITY.csv")
    given = parser.parse_args()
    KERNELS.compiled()
    missed = published(given.published, given.seconds, given.minimise) + small(given.random) + large(given.lifetimes)
    return 1 if missed else 0


def published(folder: Path, seconds: float, minimise: bool) -> int:
    """Number of published instances in a folder above their capacity; a row is printed for each."""
    missed = 0
    head = f"{'instance':>12} {'buffers':>8} {'capacity':>9} {'arena within':>13} {'s':>6}"
    print(head + " smallest" * minimise)
    for file in sorted(folder.glob("*.csv")):
        name, capacity = file.name.removesuffix(".csv").split(".")
        fields = read(file) | {"search_seconds": seconds}
        began = time.perf_counter()
        within = pack(parse_buffers(fields | {"capacity": int(capacity)}))
        took = time.perf_counter() - began
        missed += within.status == "over_capacity"
        smallest = pack(parse_buffers(fields)).arena_bytes if minimise else ""
        figures = f"{within.arena_bytes:>13} {took:>6.2f} {smallest:>9}"
        print(f"{name:>12} {len(fields['buffers']):>8} {capacity:>9} {figures}", flush=True)
    return missed


def small(count: int) -> int:
    """Number of random instances of up to 8 buffers that `best` packs into more than the smallest arena."""
    rng, missed, above_peak = random.Random(17), 0, 0
    for _ in range(count):
        table = np.array([_small_buffer(rng) for _ in range(rng.randint(1, 8))])
        best, _ = measured("best", *lifetimes(table), 10.0)
        smallest = smallest_arena(table)
        missed += best > smallest
        above_peak += smallest > peak(table)
        assert best >= smallest, "a packing below the smallest: buffers overlap"
    print(
        f"{count} instances of up to 8 buffers: {missed} above the smallest arena; {above_peak} arenas above the peak"
    )
    return missed


def _small_buffer(rng: random.Random) -> tuple[int, int, int]:
    start = rng.randrange(6)
    return start, start + rng.randint(1, 4), rng.randint(1, 9)


def smallest_arena(table: np.ndarray) -> int:
    """Bytes of the smallest arena, by placing buffers in every order, each at the lowest place above those before it.

    A packing whose buffers are pushed down as far as they go is found when they are placed by rising offset.
    """
    rows = [tuple(map(int, row)) for row in table]
    best, floor = sum(size for *_, size in rows), peak(table)

    def place_rest(placed: list[tuple[int, int, int, int]], left: list[tuple[int, ...]], top: int) -> None:
        nonlocal best
        if not left:
            best = top
        for row in dict.fromkeys(left):
            start, stop, size = row
            above = max((end for s, e, _, end in placed if s < stop and start < e), default=0)
            if best > floor and max(top, above + size) < best:
                rest = left.copy()
                rest.remove(row)
                place_rest([*placed, (start, stop, above, above + size)], rest, max(top, above + size))

    place_rest([], rows, 0)
    return best


def large(count: int) -> int:
    """1 if the arena of `count` lifetimes is more than 2% above their peak after 5 s."""
    rng = np.random.default_rng(17)
    start = np.sort(rng.integers(0, 2 * count, count))
    length = np.minimum(1 + rng.geometric(1e-3, count), 2 * count - start)
    length[::20] = 2 * (count - start[::20]).clip(
        1
    )  # activations: last read where the backward pass mirrors the forward
    table = np.stack([start, start + length, 64 * rng.integers(1, 2**14, count)], axis=1)
    arena, seconds = measured("best", *lifetimes(table), 5.0)
    above = arena / peak(table) - 1
    print(f"{count} lifetimes: arena {100 * above:.2f}% above the peak in {seconds:.2f} s")
    return int(above > 0.02)


def peak(table: np.ndarray) -> int:
    """The most bytes live at a time; rows are (start, stop, size)."""
    change = np.zeros(int(table[:, 1].max()) + 1, np.int64)
    np.add.at(change, table[:, 0], table[:, 2])
    np.subtract.at(change, table[:, 1], table[:, 2])
    return int(np.cumsum(change).max())


def read(file: Path) -> dict[str, Any]:
    """Fields of the request to pack a published instance."""
    with file.open() as rows:
        names = ("lower", "upper", "size")
        return {"buffers": [{name: int(row[name]) for name in names} for row in csv.DictReader(rows)]}


def lifetimes(table: np.ndarray) -> tuple[Lifetimes, np.ndarray, int]:
    """(lifetimes, bytes per buffer, steps) of rows (start, stop, size); a step is a time at which something changes."""
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
