"""Compiles the kernels into the disk cache, so that no first plan waits for it: `python -m planner.warm`."""

from __future__ import annotations

import time

from planner import gap_kernels, run_kernels

ALL = (gap_kernels.KERNELS, run_kernels.KERNELS)


def warm() -> float:
    """Seconds it took to have all kernels in machine code."""
    started = time.monotonic()
    for kernels in ALL:
        kernels.compiled()
    return time.monotonic() - started


if __name__ == "__main__":
    print(f"kernels ready in {warm():.1f} s")
