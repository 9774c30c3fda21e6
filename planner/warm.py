"""Compile all numba kernels into the disk cache ahead of the first plan: `python -m planner.warm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from planner.algorithms.annealing import move_kernels
from planner.algorithms.blocks import kernels as block_kernels
from planner.algorithms.greedy import gap_kernels, trim_kernels
from planner.layout import canonical_kernels
from planner.problem import liveness_kernels
from planner.problem.jit import Kernels

KERNEL_SETS = (
    gap_kernels.KERNELS,
    trim_kernels.KERNELS,
    move_kernels.KERNELS,
    block_kernels.KERNELS,
    canonical_kernels.KERNELS,
    liveness_kernels.KERNELS,
)


#: The program of a process that compiles one set: it gets this process's module path, this module and the set's number.
COMPILE_ONE = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).KERNEL_SETS[int(sys.argv[3])].compiled()
"""


def warm() -> float:
    """Compile or load all kernels; returns the seconds taken."""
    started = time.monotonic()
    ready(lambda: None)
    return time.monotonic() - started


def ready(before_compiling: Callable[[], None]) -> None:
    """Load all kernels; call `before_compiling` first if some are not in the disk cache and are compiled now."""
    missing = [kernels for kernels in KERNEL_SETS if not kernels.is_compiled()]
    if absent := [kernels for kernels in missing if not kernels.is_on_disk()]:
        before_compiling()
        compile_to_disk(absent)
    for kernels in missing:
        kernels.compiled()


def compile_to_disk(absent: Sequence[Kernels]) -> None:
    """Compile the sets into the disk cache, one process per core, the largest set first.

    Kernels are compiled under the interpreter's lock, so that threads would take turns. A set whose process fails, or
    cannot write the cache, is left to the caller, as all are on a single core.
    """
    cores = os.cpu_count() or 1
    if not sys.executable or min(cores, len(absent)) == 1:
        return
    module = __spec__.name if __spec__ else __name__  # `__name__` is "__main__" under `python -m`
    command = [sys.executable, "-c", COMPILE_ONE, json.dumps(sys.path), module]

    def compile_one(kernels: Kernels) -> None:
        number = str(KERNEL_SETS.index(kernels))
        subprocess.run([*command, number], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(compile_one, sorted(absent, key=lambda kernels: -len(kernels.functions))))


def load_cached() -> None:
    """Load the kernel sets that are in the disk cache; compile nothing."""
    for kernels in KERNEL_SETS:
        if kernels.is_on_disk():
            kernels.compiled()


if __name__ == "__main__":
    print(f"kernels ready in {warm():.1f} s")
