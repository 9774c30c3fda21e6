"""Compile all numba kernels ahead of the first plan: `python -m planner.warm`.

`python -m planner.warm --prebuild` compiles them into the package, for every usual processor of this architecture.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from planner import prebuilt_kernels
from planner.algorithms.annealing import move_kernels
from planner.algorithms.blocks import kernels as block_kernels
from planner.algorithms.eviction import kernels as eviction_kernels
from planner.algorithms.greedy import gap_kernels, trim_kernels
from planner.layout import canonical_kernels, ejection_kernels, sweep_kernels
from planner.problem import liveness_kernels, recompute, schedule_kernels
from planner.problem.jit import Kernels
from planner.verify import acceptance_kernels

KERNEL_SETS = (
    gap_kernels.KERNELS,
    trim_kernels.KERNELS,
    eviction_kernels.KERNELS,
    move_kernels.KERNELS,
    block_kernels.KERNELS,
    canonical_kernels.KERNELS,
    ejection_kernels.KERNELS,
    sweep_kernels.KERNELS,
    liveness_kernels.KERNELS,
    recompute.KERNELS,
    schedule_kernels.KERNELS,
    acceptance_kernels.KERNELS,
)


#: The program of a process that compiles sets: it gets this process's module path and this module, then the number of
#: one set a line, and answers each with a line.
COMPILE_SETS = """
import importlib, json, sys
sys.path[:] = json.loads(sys.argv[1])
sets = importlib.import_module(sys.argv[2]).KERNEL_SETS
for number in sys.stdin:
    sets[int(number)].compiled()
    print(flush=True)
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
    """Compile the sets into the disk cache, by one process per core that takes the largest set left.

    Kernels are compiled under the interpreter's lock, so that threads would take turns. Sets of a process that fails,
    or cannot write the cache, are left to the caller, as all are on a single core.
    """
    cores = min(os.cpu_count() or 1, len(absent))
    if not sys.executable or cores == 1:
        return
    module = __spec__.name if __spec__ else __name__  # `__name__` is "__main__" under `python -m`
    command = [sys.executable, "-c", COMPILE_SETS, json.dumps(sys.path), module]
    left = deque(sorted(absent, key=Kernels.code_bytes, reverse=True))

    def compile_sets(_: int) -> None:
        pipe = subprocess.PIPE
        starting = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        with suppress(IndexError, BrokenPipeError), starting as process:  # all sets are taken, or the process has ended
            assert process.stdin is not None and process.stdout is not None
            while True:
                process.stdin.write(f"{KERNEL_SETS.index(left.popleft())}\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    break

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(compile_sets, range(cores)))


def load_cached() -> None:
    """Load the kernel sets that are in the disk cache; compile nothing."""
    for kernels in KERNEL_SETS:
        if kernels.is_on_disk():
            kernels.compiled()


def prebuild(into: Path = prebuilt_kernels.FOLDER) -> int:
    """Compile all kernels for a usual processor of this architecture into `into`; returns the number of files."""
    module = __spec__.name if __spec__ else __name__
    with TemporaryDirectory() as caches:
        environment = os.environ | prebuilt_kernels.compiler_environment() | {"NUMBA_CACHE_DIR": caches}
        subprocess.run([sys.executable, "-m", module], env=environment, check=True)
        return prebuilt_kernels.collect(Path(caches), into)


if __name__ == "__main__":
    if sys.argv[1:] == ["--prebuild"]:
        print(f"{prebuild()} kernels prebuilt in {prebuilt_kernels.FOLDER}")
    else:
        print(f"kernels ready in {warm():.1f} s")
