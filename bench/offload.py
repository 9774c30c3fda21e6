"""Overhead of a transformer of 24 layers within 40% and 25% of its peak: recomputation alone, and with copies.

    python bench/offload.py                       # 25 GB/s each way, both directions at once; 10 s a plan
    python bench/offload.py --link shared --seconds 20
    python bench/offload.py --random 2000         # small problems against an exact oracle, 50 sequences for each

Prints for each budget the overhead of both plans, the part of recomputation's overhead that copies remove, and the peak
in both spaces. Plans are checked before they are printed. With --random: how many of N problems of up to 8 tasks get a
plan over a budget that can be kept, or a slower plan than the fastest, and by how much at most; then 50 N random
sequences of tasks on engines, of which evaluator and checker must say the same.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from typing import Any

from bench.generators import transformer
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.planner.copy_problems import excess, small_copy_problem
from tests.planner.problem.test_schedule import agreeing_sequences

LAYERS_NODES = 1_050  # nodes of 24 layers
BUDGETS = ("40%", "25%")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--link", choices=("duplex", "shared"), default="duplex")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--random", type=int, metavar="N")
    chosen = parser.parse_args()
    if chosen.random:
        compare_with_oracle(chosen.random)
        return
    model = json.dumps(transformer(LAYERS_NODES)).encode()
    device = {"like": "a100-80gb", "host_bandwidth": 25e9, "host_link": chosen.link}
    for budget in BUDGETS:
        asked: dict[str, Any] = {"budget": budget, "device": device, "search_seconds": chosen.seconds}
        plain, copied = (solve(model, parse_request(asked | {"offload": o})).report for o in (False, True))
        before, after = (report["plan"]["overhead"] for report in (plain, copied))
        print(
            f"{copied['model']['name']}, {budget}, {chosen.link}: recomputation {before:.2%} "
            f"({plain['plan']['status']}), with copies {after:.2%} ({copied['plan']['status']}), "
            f"removed {1 - after / before:.0%}; {len(copied['plan']['offloaded'])} values copied, "
            f"needs {copied['plan']['needed_bytes']:,} of {copied['plan']['budget_bytes']:,} bytes, "
            f"host {copied['copies']['host_peak_bytes']:,} bytes"
        )


def compare_with_oracle(count: int) -> None:
    excesses = [excess(*small_copy_problem(random.Random(seed))) for seed in range(count)]
    slower = [each for each in excesses if 0 < each < math.inf]
    missed = [seed for seed, each in enumerate(excesses) if each == math.inf]
    print(
        f"{count} problems: {len(missed)} over a budget that can be kept (seeds {missed}), "
        f"{len(slower)} slower than the fastest plan, by {max(slower, default=0):.1%} at most"
    )
    print(f"{agreeing_sequences(50 * count, seed=1)} sequences: evaluator and checker agree")


if __name__ == "__main__":
    main()
