"""Compile all numba kernels into the disk cache ahead of the first plan: `python -m planner.warm`."""

from __future__ import annotations

import time
from collections.abc import Callable

from planner.algorithms.annealing import move_kernels
from planner.algorithms.blocks import kernels as block_kernels
from planner.algorithms.greedy import gap_kernels, trim_kernels
from planner.layout import canonical_kernels
from planner.problem import liveness_kernels

KERNEL_SETS = (
    gap_kernels.KERNELS,
    trim_kernels.KERNELS,
    move_kernels.KERNELS,
    block_kernels.KERNELS,
    canonical_kernels.KERNELS,
    liveness_kernels.KERNELS,
)


def warm() -> float:
    """Compile or load all kernels; returns the seconds taken."""
    started = time.monotonic()
    for kernels in KERNEL_SETS:
        kernels.compiled()
    return time.monotonic() - started


def ready(before_compiling: Callable[[], None]) -> None:
    """Load all kernels; call `before_compiling` first if some are not in the disk cache and are compiled now."""
    missing = [kernels for kernels in KERNEL_SETS if not kernels.is_compiled()]
    if not all(kernels.is_on_disk() for kernels in missing):
        before_compiling()
    for kernels in missing:
        kernels.compiled()


def load_cached() -> None:
    """Load the kernel sets that are in the disk cache; compile nothing."""
    for kernels in KERNEL_SETS:
        if kernels.is_on_disk():
            kernels.compiled()


if __name__ == "__main__":
    print(f"kernels ready in {warm():.1f} s")
