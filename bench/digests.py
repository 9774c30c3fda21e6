"""Fingerprints of plans, to see that a refactor leaves every plan as it was.

    python bench/digests.py            # writes bench/digests.json
    python bench/digests.py --check    # exit 1 when a plan differs from it, naming which
    python bench/digests.py --check --only " 0.5 "    # plans at half the peak, as `.ci/run` does

Each digest is the sha256 of a plan's task numbers, choices and offsets for a fixed document, planner, seed and
iteration limit. Planners that are not in the file are added by writing it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import scans
from bench.catalogue import Instance
from bench.generators import chain, transformer, unet
from graph.autodiff.differentiate import differentiate
from graph.formats.native import writer
from planner.algorithms import PLANNERS
from planner.pipeline import solve as pipeline
from planner.pipeline import solve_stages
from planner.request.plan_request import parse_request

FILE = Path(__file__).parent / "digests.json"
INSTANCES = ("chain40", "vgg16_b32", "unet_b4", "layered_n250_s2", "densenet_small", "transformer16_t2048")
BUDGETS = (0.8, 0.5)
ITERATIONS, SEED = 300, 0
PROCESSES = 2
#: These use every iteration there is, the last one for each planner.
FEWER_ITERATIONS = {"anneal": 30, "search_order": 30, "auto": 10}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", help='plans whose "document budget planner" contains this')
    asked = parser.parse_args()
    found = dict(digests(asked.only or ""))
    if not asked.check:
        FILE.write_text(json.dumps({**stored(), **found}, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} digests written")
        return 0
    differing = [name for name, plan_digest in found.items() if stored().get(name) != plan_digest]
    for name in differing:
        print(f"{name}: {'differs' if name in stored() else 'is not in digests.json'}")
    print(f"{len(found) - len(differing)} of {len(found)} plans are as they were")
    return 1 if differing else 0


def digests(only: str = "") -> Iterator[tuple[str, str]]:
    """(document budget planner, digest) of every plan; two processes share them."""
    asked = [
        (name, document, budget, planner)
        for name, document in documents().items()
        for budget in BUDGETS
        for planner in (*PLANNERS, "auto")
        if only in f"{name} {budget} {planner}"
    ]
    if not asked:
        return
    names, *columns = zip(*asked, strict=True)
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        for name, _, budget, planner, found in zip(names, *columns, pool.map(digest, *columns), strict=True):
            yield f"{name} {budget} {planner}", found


def documents() -> dict[str, bytes]:
    """Documents by name: instances, and generated ones with phases, two of them with bodies."""
    generated = {"chain(30)": chain(30, seed=7), "unet(3)": unet(3), "transformer(600)": transformer(600)}
    bodies = {"scanned(4)": scans.transformer(4, 16, 32, 2), "recurrence(40)": scans.recurrence(40, 4, 16)}
    generated |= {name: writer.document(differentiate(graph, ["loss"])) for name, graph in bodies.items()}
    return {name: Instance(name).bytes for name in INSTANCES} | {
        name: json.dumps(document).encode() for name, document in generated.items()
    }


def digest(document: bytes, budget: float, planner: str) -> str:
    """sha256 of the plan's task numbers, its choices where it makes any, and its offsets as little-endian int64.

    The bound that follows a finished plan takes most of the time of a solve and is left out.
    """
    request = parse_request(
        {
            "budget": budget,
            "planner": planner,
            "seed": SEED,
            "iterations": FEWER_ITERATIONS.get(planner, ITERATIONS),
            "layout": "fast",
            "execute": "no",
        }
    )
    with patch.object(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation):
        plan = pipeline.solve(document, request).plan
    sha = hashlib.sha256(np.ascontiguousarray(plan.order, "<i8").tobytes())
    if plan.choices:
        sha.update(np.array(plan.choices, "<i8").tobytes())
    if plan.offsets is not None:
        sha.update(np.ascontiguousarray(plan.offsets, "<i8").tobytes())
    return sha.hexdigest()


def stored() -> dict[str, str]:
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


if __name__ == "__main__":
    sys.exit(main())
