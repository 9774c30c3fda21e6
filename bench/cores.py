"""Prints how much less time two cores need for a plan as good as that of one core, and how long the second is idle.

    python bench/cores.py                     # every case, 5 seconds with one core and with two
    python bench/cores.py --only resnet       # cases whose name contains one of these words
    python bench/cores.py --seconds 10
    python bench/cores.py --runs 3            # the median of so many runs each: times vary less

A case is planned in a process of its own for each run. Planners divide the time that is requested, so each number of
cores is given ever more of it, until its plan costs at most EQUAL more than that of one core in all of the time: the
ratio is that of these two times. Plans are for a runtime that chooses addresses itself, so that all of the time is
search. The last column says how much less time two equal loops took at once than one after the other, right before the
case: no planner does better than the machine. Exits 1 if the median ratio is below 1.6, or if there are not two cores.
The figures need a machine without other work.
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
SHARES = tuple(10 ** (k / 15 - 1.6) for k in range(25))  # of the time, that are tried: 2.5% to all of it
RUNTIME = "torch-eager"  # places tensors itself: no time is left for addresses, all of it is search
EQUAL = 1e-4  # of the baseline's time: 0.01 points of overhead
LOOP = "import time; began = time.monotonic(); sum(range(40_000_000)); print(time.monotonic() - began)"


@dataclass(frozen=True)
class Run:
    """One search with a number of cores."""

    overhead: float  # of its best plan before addresses, as a share; infinite if there is none
    busy: float  # cores in use on average


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--child", nargs=3, metavar=("NAME", "BUDGET", "CORES"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        name, budget, cores = asked.child
        print(json.dumps(planned(name, float(budget), int(cores), asked.seconds)))
        return 0
    if len(os.sched_getaffinity(0)) < 2:
        print("this process may use one core only; allow it two, e.g. with taskset", file=sys.stderr)
        return 1
    print(
        "| case | budget | overhead | 1 core, s | 2 cores, s | ratio | second core idle | two loops |\n|" + 8 * "---|"
    )
    ratios = []
    for name, budget in CASES:
        if any(word in name for word in asked.only):
            case, loops = Case(name, budget, asked.seconds, asked.runs), ratio_of_loops()
            wanted = case.middle(1).overhead + EQUAL
            (alone, _), (both, run) = (case.shortest(cores, wanted) for cores in (1, 2))
            ratios.append(alone / both)
            idle = 1 - min(1.0, max(0.0, run.busy - 1))
            times = f"{alone:.2f} | {both:.2f} | {alone / both:.2f}"
            print(f"| {name} | {budget} | {wanted:.3%} | {times} | {idle:.0%} | {loops:.2f} |", flush=True)
    middle = statistics.median(ratios or [0.0])
    print(f"\nmedian ratio {middle:.2f}, at least {LEAST_RATIO} wanted")
    return 0 if middle >= LEAST_RATIO else 1


def ratio_of_loops() -> float:
    """Time of two equal loops one after the other over that of both at once."""

    def seconds(count: int) -> float:
        loops = [subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE) for _ in range(count)]
        return max(float(loop.communicate()[0]) for loop in loops)

    return 2 * seconds(1) / seconds(2)


@dataclass(frozen=True)
class Case:
    """A graph and a budget, with the seconds for one core and the runs whose median counts."""

    name: str
    budget: str
    seconds: float
    runs: int

    def shortest(self, cores: int, wanted: float) -> tuple[float, Run]:
        """(shortest time whose plan has at most the overhead wanted, its run); all of the time if none has."""
        for share in SHARES:
            run = self.middle(cores, share)
            if run.overhead <= wanted:
                break
        return share * self.seconds, run

    def middle(self, cores: int, share: float = 1.0) -> Run:
        """The run of the median overhead, of runs of `planned` in processes of their own."""
        command = [sys.executable, __file__, "--seconds", str(share * self.seconds)]
        command += ["--child", self.name, self.budget, str(cores)]
        runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(self.runs)]
        return sorted((Run(*json.loads(run.stdout)) for run in runs), key=lambda run: run.overhead)[self.runs // 2]


def planned(name: str, budget: float, cores: int, seconds: float) -> tuple[float, float]:
    """The fields of a `Run` on the first `cores` cores that this process may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    # Imported once the cores are known: thread pools are made for as many.
    from bench.catalogue import Instance
    from planner.pipeline.progress import Progress
    from planner.pipeline.solve import solve
    from planner.request.plan_request import parse_request
    from planner.warm import warm

    warm()
    least = math.inf

    def note(progress: Progress) -> None:
        nonlocal least
        least = min(least, math.inf if progress.incumbent_overhead is None else progress.incumbent_overhead)

    document, began, start = Instance(name).bytes, time.process_time(), time.monotonic()
    request = {"budget": budget, "search_seconds": seconds, "execute": "no", "runtime": RUNTIME}
    solve(document, parse_request(request), on_progress=note)
    return least, (time.process_time() - began) / (time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(main())
