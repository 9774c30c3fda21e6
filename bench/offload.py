"""Overhead within 40% and 25% of the peak: recomputation alone, and with copies over links of 25 GB/s each way.

    python bench/offload.py                       # 10 s a plan, about three minutes
    python bench/offload.py --seconds 20
    python bench/offload.py --random 2000         # small problems against an exact oracle, 50 sequences for each

Two models: a training step of a transformer of 24 layers, which copies to the host first and from it later, and the
first stage of a pipeline, which does both at once: 4 layers, 8 micro-batches, 4 in flight, one forward and one backward
in turn. Links: both directions at once (duplex), one at a time (shared), and duplex with half of the host memory that
the plan before took. Prints the overhead of both plans, the part of recomputation's overhead that copies remove, and
the peak in both spaces. Plans are checked before they are printed.

With --random: how many of N problems get a plan over a budget that can be kept, or a slower plan than the fastest, and
by how much at most: even seeds have up to 8 tasks, odd ones up to 10 with optional tasks, collectives and alternatives.
Collectives are in line with compute there; in half as many problems more, with negative seeds, they run beside it.
Then 50 N random sequences (at least 1,000) of tasks on engines, of which evaluator and checker must say the same.
A process for each core; about half a second for each problem.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.generators import transformer
from bench.tape import Document
from planner.pipeline.solve import solve
from planner.problem.copies import CopyProblem
from planner.problem.plan import Goal
from planner.problem.schedule_kernels import KERNELS
from planner.request.plan_request import parse_request
from tests.planner.copy_problems import (
    MAX_TASKS_WITH_EVERYTHING,
    excess,
    small_copy_problem,
    small_overlap_problem,
    with_everything,
)
from tests.planner.problem.test_schedule import agreeing_sequences

NODES_24_LAYERS, NODES_4_LAYERS = 1_050, 170
BUDGETS = ("40%", "25%")
#: Problems between two lines of progress; random sequences of one seed.
PROGRESS_EVERY, SEQUENCES = 50, 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--random", type=int, metavar="N")
    chosen = parser.parse_args()
    if chosen.random:
        compare_with_oracle(chosen.random)
        return
    for model in (transformer(NODES_24_LAYERS), pipeline_stage(transformer(NODES_4_LAYERS), 8, 4)):
        for budget in BUDGETS:
            compare_links(model, budget, chosen.seconds)


def pipeline_stage(step: Document, micro_batches: int, in_flight: int) -> Document:
    """A training step for each micro-batch, in a given order: some forward parts, then backward and forward in turn."""
    parts = {phase: [node for node in step["nodes"] if node["phase"] == phase] for phase in ("forward", "backward")}
    made = {name for node in step["nodes"] for name in node["outputs"]}
    nodes, values = [], [value for value in step["values"] if value["name"] not in made]

    def add(phase: str, k: int) -> None:
        for node in parts[phase]:
            named = {side: [f"{v}.{k}" if v in made else v for v in node[side]] for side in ("inputs", "outputs")}
            nodes.append({key: node[key] for key in node if key != "phase"} | named | {"name": f"{node['name']}.{k}"})

    for k in range(micro_batches + in_flight):
        if k >= in_flight:
            add("backward", k - in_flight)
        if k < micro_batches:
            add("forward", k)
            values += [value | {"name": f"{value['name']}.{k}"} for value in step["values"] if value["name"] in made]
    name = f"pipeline stage, {micro_batches} micro-batches, {in_flight} in flight"
    return step | {"name": name, "order": "given", "nodes": nodes, "values": values}


def compare_links(model: Document, budget: str, seconds: float) -> None:
    """Print a line for each link: the plan with copies beside the one without."""
    data = json.dumps(model).encode()

    def planned(link: str, **fields: Any) -> dict[str, Any]:
        device = {"like": "a100-80gb", "host_bandwidth": 25e9, "host_link": link}
        asked = {"budget": budget, "device": device, "search_seconds": seconds}
        return solve(data, parse_request(asked | fields)).report

    before = planned("duplex")["plan"]
    copied = {link: planned(link, offload=True) for link in ("duplex", "shared")}
    if half := copied["duplex"]["copies"]["host_peak_bytes"] // 2:
        copied["duplex, half of the host memory"] = planned("duplex", offload=True, host_memory=half)
    for link, report in copied.items():
        plan, copies = report["plan"], report["copies"]
        removed = 1 - plan["overhead"] / before["overhead"] if before["overhead"] else 0.0
        print(
            f"{model['name']}, {budget}, {link}: recomputation {before['overhead']:.2%} ({before['status']}), "
            f"with copies {plan['overhead']:.2%} ({plan['status']}), removed {removed:.0%}; "
            f"{len(plan['offloaded'])} values copied, needs {plan['needed_bytes']:,} of {plan['budget_bytes']:,} bytes "
            f"and, on the host, {copies['host_peak_bytes']:,} bytes",
            flush=True,
        )


def random_copy_problem(seed: int) -> tuple[CopyProblem, Goal]:
    if seed < 0:
        return small_overlap_problem(random.Random(-seed))
    if seed % 2:
        return small_copy_problem(random.Random(seed), with_everything, MAX_TASKS_WITH_EVERYTHING)
    return small_copy_problem(random.Random(seed))


def excess_of(seed: int) -> float:
    return excess(*random_copy_problem(seed))


def agreeing(seed: int) -> int:
    return agreeing_sequences(SEQUENCES, seed)


def compare_with_oracle(count: int) -> None:
    """Print misses as they are found, progress every PROGRESS_EVERY problems, and totals; a process for each core."""
    over, slower = list[int](), dict[int, float]()
    seeds = [*range(count), *range(-1, -1 - count // 2, -1)]
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=KERNELS.compiled) as pool:
        for done, (seed, each) in enumerate(zip(seeds, pool.map(excess_of, seeds), strict=True), 1):
            if each == math.inf:
                over.append(seed)
                print(f"seed {seed}: over a budget that can be kept", flush=True)
            elif each:
                slower[seed] = each
                print(f"seed {seed}: {each:.1%} slower than the fastest plan", flush=True)
            if done % PROGRESS_EVERY == 0:
                print(f"{done} of {len(seeds)} problems, {len(over) + len(slower)} missed", flush=True)
        print(
            f"{len(seeds)} problems: {len(over)} over a budget that can be kept (seeds {over}), {len(slower)} slower "
            f"than the fastest plan (seeds {list(slower)}), by {max(slower.values(), default=0):.1%} at most",
            flush=True,
        )
        sequences = sum(pool.map(agreeing, range(1, 1 + -(-50 * count // SEQUENCES))))
    print(f"{sequences} sequences: evaluator and checker agree")


if __name__ == "__main__":
    main()
