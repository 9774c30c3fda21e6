"""Prints how much sooner two cores reach the plan that one core finds, and how long the second core is idle.

    python bench/cores.py                     # every case, 5 seconds with one core and with two
    python bench/cores.py --only resnet       # cases whose name contains one of these words
    python bench/cores.py --seconds 10

A case is planned in a process of its own for each number of cores. Quality is equal at the greater overhead of the two
last plans, before their addresses are chosen: the ratio compares the seconds after which each first had such a plan.
Exits 1 if the median ratio is below 1.6, or if there are not two cores. The figures need a machine without other work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

CASES = (
    ("layered_n250_s2", "0.80"),
    ("layered_n1000_s4", "0.80"),
    ("resnet101_b32", "0.50"),
    ("densenet_small", "0.50"),
    ("transformer16_t2048", "0.50"),
    ("lstm_T30x2", "0.60"),
)
LEAST_RATIO = 1.6


@dataclass(frozen=True)
class Run:
    """One search with a number of cores."""

    plans: list[tuple[float, float]]  # (seconds since its start, overhead as a share), each better than the one before
    busy: float  # cores in use on average

    def seconds_to(self, overhead: float) -> float:
        """Seconds until a plan with at most this overhead; infinite if there was none."""
        return min((seconds for seconds, found in self.plans if found <= overhead), default=math.inf)

    @property
    def best(self) -> float:
        return min((overhead for _, overhead in self.plans), default=math.inf)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--child", nargs=3, metavar=("NAME", "BUDGET", "CORES"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        name, budget, cores = asked.child
        print(json.dumps(planned(name, float(budget), int(cores), asked.seconds)))
        return 0
    if len(os.sched_getaffinity(0)) < 2:
        print("this process may use one core only; allow it two, e.g. with taskset", file=sys.stderr)
        return 1
    print("| case | budget | overhead | 1 core, s | 2 cores, s | ratio | second core idle |\n|" + 7 * "---|")
    ratios = []
    for name, budget in CASES:
        if any(word in name for word in asked.only):
            one, two = (in_process(name, budget, cores, asked.seconds) for cores in (1, 2))
            overhead = max(one.best, two.best)
            ratios.append(one.seconds_to(overhead) / two.seconds_to(overhead) if math.isfinite(overhead) else math.nan)
            idle = 1 - min(1.0, max(0.0, two.busy - 1))
            seconds = f"{one.seconds_to(overhead):.2f} | {two.seconds_to(overhead):.2f}"
            print(f"| {name} | {budget} | {overhead:.3%} | {seconds} | {ratios[-1]:.2f} | {idle:.0%} |", flush=True)
    middle = statistics.median([ratio for ratio in ratios if not math.isnan(ratio)] or [0.0])
    print(f"\nmedian ratio {middle:.2f}, at least {LEAST_RATIO} wanted")
    return 0 if middle >= LEAST_RATIO else 1


def in_process(name: str, budget: str, cores: int, seconds: float) -> Run:
    """`planned` in a process of its own."""
    command = [sys.executable, __file__, "--seconds", str(seconds), "--child", name, budget, str(cores)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Run([(at, overhead) for at, overhead in found["plans"]], found["busy"])


def planned(name: str, budget: float, cores: int, seconds: float) -> dict[str, Any]:
    """The plans of one search on the first `cores` cores that this process may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    # Imported once the cores are known: thread pools are made for as many.
    from bench.catalogue import Instance
    from planner.pipeline.progress import Progress
    from planner.pipeline.solve import solve
    from planner.request.plan_request import parse_request
    from planner.warm import warm

    warm()
    plans: list[tuple[float, float]] = []
    start = time.monotonic()

    def note(progress: Progress) -> None:
        if progress.incumbent_overhead is not None and (not plans or progress.incumbent_overhead < plans[-1][1]):
            plans.append((time.monotonic() - start, progress.incumbent_overhead))

    document, began = Instance(name).bytes, time.process_time()
    start = time.monotonic()
    solve(document, parse_request({"budget": budget, "search_seconds": seconds, "execute": "no"}), on_progress=note)
    return {"plans": plans, "busy": (time.process_time() - began) / (time.monotonic() - start)}


if __name__ == "__main__":
    sys.exit(main())
