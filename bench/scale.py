"""Times the data path on transformer-shaped documents of 1,000, 10,000 and 100,000 nodes.

    python bench/scale.py              # exit 1 when a limit is missed
    python bench/scale.py --sizes 1000,10000

Stages: parse, lower, greedy, check, realize, serialise; each in seconds and peak resident bytes, in
a process of its own per size. The processor's seconds stand below: they are the same where nobody else
uses the machine. Limits: 100,000 nodes within 7 s and 2 GB, and from 10,000 to 100,000
nodes no steeper than n log n (a quarter is allowed for noise). A run of all three sizes writes
bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.generators import transformer
from bench.run import machine, resident_bytes

SIZES = (1_000, 10_000, 100_000)
BUDGET = 0.5
MOST_SECONDS, MOST_BYTES = 7.0, 2_000_000_000  # for the largest of SIZES
NOISE = 1.25
RESULT = Path(__file__).parent / "results" / "scale.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=list(SIZES))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measured(asked.measure.read_bytes())))
        return 0
    warm_up()
    runs = [run_apart(nodes) for nodes in sorted(asked.sizes)]
    print(table(runs))
    missed = misses(runs)
    if asked.sizes == list(SIZES):
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"machine": machine(), "runs": runs, "missed": missed}, indent=1) + "\n")
    for reason in missed:
        print(f"missed: {reason}")
    return 1 if missed else 0


def run_apart(nodes: int) -> dict[str, Any]:
    """What a fresh process measures on a document of about `nodes` nodes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "document.json"
        path.write_text(json.dumps(transformer(nodes)))
        done = subprocess.run(
            [sys.executable, __file__, "--measure", str(path)], check=True, capture_output=True, text=True
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def warm_up() -> None:
    """Compiled kernels are cached on disk before anything is timed."""
    measured(json.dumps(transformer(100)).encode())


def measured(document: bytes) -> dict[str, Any]:
    """Seconds and peak resident bytes per stage of one document."""
    stages = Stages()
    return {
        **walked(document, stages),
        "seconds": stages.seconds,
        "peak_bytes": stages.peak_bytes,
        "total_seconds": sum(stages.seconds.values()),
        "total_peak_bytes": max(stages.peak_bytes.values()),
        "processor_seconds": sum(stages.processor_seconds.values()),
    }


def walked(document: bytes, stage: Callable[[str], AbstractContextManager[None]]) -> dict[str, Any]:
    """What comes out of the data path, each part of which runs inside `stage`; collector paused as in `pipeline.solve`.

    Libraries are imported and kernels loaded before the first stage, as in a server that runs.
    """
    from graph.formats.native import writer
    from graph.formats.readers import load
    from graph.gc_pause import gc_paused
    from planner.formulation import formulate
    from planner.lowering.realize import node_sequence, realize
    from planner.request.plan_request import parse_request
    from planner.search import portfolio
    from planner.verify.checker import check
    from planner.warm import warm

    warm()
    request = parse_request({"budget": BUDGET, "planner": "greedy", "layout": "none"})
    with gc_paused():
        with stage("parse"):
            graph = load(document)
        with stage("lower"):
            question = formulate.formulate(graph, request)
        with stage("greedy"):
            found = portfolio.search(question.lowered.problem, question.goal, "greedy", question.monitor())
            plan = question.evaluated(found.order, found.planner)
        with stage("check"):
            check(question.lowered.problem, question.goal, plan)
        with stage("realize"):
            rewritten = realize(node_sequence(question.lowered, plan))
        with stage("serialise"):
            size = len(writer.dump(rewritten))
    return {
        "nodes": len(graph.nodes),
        "reads": len(question.lowered.problem.reads.index),
        "steps": len(plan.order),
        "overhead": plan.score.cost / question.baseline_cost - 1,
        "bytes_over_budget": plan.score.bytes_over_budget,
        "written_bytes": size,
    }


class Stages:
    """Clock and memory high-water mark per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.processor_seconds: dict[str, float] = {}
        self.peak_bytes: dict[str, int] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        resident_bytes(reset=True)
        began, began_processor = time.perf_counter(), time.process_time()
        yield
        self.seconds[stage] = time.perf_counter() - began
        self.processor_seconds[stage] = time.process_time() - began_processor
        self.peak_bytes[stage] = resident_bytes()


def misses(runs: list[dict[str, Any]]) -> list[str]:
    """Why the runs are not good enough; empty when they are."""
    reasons = []
    largest = runs[-1]
    if largest["nodes"] >= SIZES[-1]:
        if largest["total_seconds"] > MOST_SECONDS:
            reasons.append(
                f"{largest['nodes']} nodes took {largest['total_seconds']:.2f} s, more than {MOST_SECONDS} s"
            )
        if largest["total_peak_bytes"] > MOST_BYTES:
            reasons.append(f"{largest['nodes']} nodes took {largest['total_peak_bytes']} bytes, more than {MOST_BYTES}")
    if len(runs) > 1:
        smaller = runs[-2]
        allowed = NOISE * n_log_n(largest["nodes"]) / n_log_n(smaller["nodes"])
        grown = largest["total_seconds"] / smaller["total_seconds"]
        if grown > allowed:
            reasons.append(f"time grew {grown:.1f}-fold where n log n and noise allow {allowed:.1f}")
    return reasons


def n_log_n(n: int) -> float:
    return n * math.log(n)


def exponent(runs: list[dict[str, Any]], stage: str | None = None) -> float:
    """Slope of log seconds over log nodes between the two largest runs; n log n has 1.1 there."""
    (a, b) = runs[-2:]
    times = [run["total_seconds"] if stage is None else run["seconds"][stage] for run in (a, b)]
    return math.log(max(times[1], 1e-6) / max(times[0], 1e-6)) / math.log(b["nodes"] / a["nodes"])


def table(runs: list[dict[str, Any]]) -> str:
    """Seconds and megabytes per stage and size, with the fitted exponent."""
    head = "stage     " + "".join(f"{run['nodes']:>22,}" for run in runs) + "   exponent"
    lines = [head]
    for stage in runs[0]["seconds"]:
        cells = "".join(f"{run['seconds'][stage]:12.3f} s {run['peak_bytes'][stage] / 1e6:5.0f} MB" for run in runs)
        lines.append(f"{stage:10}{cells}" + (f"   {exponent(runs, stage):.2f}" if len(runs) > 1 else ""))
    cells = "".join(f"{run['total_seconds']:12.3f} s {run['total_peak_bytes'] / 1e6:5.0f} MB" for run in runs)
    lines.append(f"{'all':10}{cells}" + (f"   {exponent(runs):.2f}" if len(runs) > 1 else ""))
    lines.append("processor " + "".join(f"{run['processor_seconds']:12.3f} s        " for run in runs).rstrip())
    if len(runs) > 1:
        a, b = (run["nodes"] for run in runs[-2:])
        fair = math.log(n_log_n(b) / n_log_n(a)) / math.log(b / a)
        steep = exponent(runs) > fair + math.log(NOISE) / math.log(b / a)
        lines.append(f"from {a:,} to {b:,} nodes n log n has {fair:.2f}: {'worse' if steep else 'no worse'} than that")
    lines.append("overhead  " + "".join(f"{100 * run['overhead']:21.2f}%" for run in runs))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
