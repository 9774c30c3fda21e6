"""Imported once by the process that child processes are forked from, so that each starts in milliseconds.

Compiled kernels that are on the disk are there as well: a child that loads them itself pays a second. So is all that a
solve imports and prepares when it first needs it: a small one is made here, once, which no child then has to.
"""

import importlib
import json
import os

# Imports inside functions: environment variables are set before numpy is imported.

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported: children share the machine

for _name in (
    "planner.pipeline.solve",
    "app.models.analysis",
    "app.models.transforms",
    "graph.formats.readers",
    "graph.formats.native.writer",
    "graph.formats.onnx.writer",
):
    importlib.import_module(_name)


def _solve_a_small_one() -> None:
    """A training step of one layer, read and planned as any other."""
    from app.solver import child_tasks
    from planner.pipeline.solve import solve
    from planner.request.plan_request import parse_request

    values = [{"name": name, "shape": [8], "dtype": "float32"} for name in ("h", "y", "dy", "dh", "dx")]
    forward = [("f", ["x"], ["h"]), ("g", ["h"], ["y"])]
    backward = [("dg", ["y"], ["dy"]), ("dm", ["h", "dy"], ["dh"]), ("df", ["x", "dh"], ["dx"])]
    nodes = [
        {"name": name, "op": "remat.preload::Layer", "inputs": reads, "outputs": writes, "phase": phase}
        for phase, some in (("forward", forward), ("backward", backward))
        for name, reads, writes in some
    ]
    given = {"name": "x", "shape": [8], "dtype": "float32", "role": "input"}
    document = {"format": "remat/1", "name": "", "values": [given, *values], "nodes": nodes, "outputs": ["dx"]}
    asked = {"planner": "anneal", "iterations": 1, "budget": "99%", "return": ["plan", *child_tasks.SECTIONS]}
    solve(json.dumps(document).encode(), parse_request(asked))


_warm = importlib.import_module("planner.warm")
_warm.load()
if all(kernels.is_on_disk() for kernels in _warm.ALL):
    _solve_a_small_one()
