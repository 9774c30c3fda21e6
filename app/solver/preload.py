"""Imported once by the process that child processes are forked from, so that each starts in milliseconds.

Compiled kernels that are on the disk are there as well: a child that loads them itself pays a second. So is all that a
solve imports and prepares when it first needs it: a small one is made here, once, which no child then has to.
"""

import json
import os

# Imports inside functions: environment variables are set before numpy is imported.

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported: children share the machine

from app.models import analysis, transforms  # noqa: E402, F401
from app.solver import child_tasks  # noqa: E402
from graph.formats import readers  # noqa: E402, F401
from graph.formats.native import writer as _native  # noqa: E402, F401
from graph.formats.onnx import writer as _onnx  # noqa: E402, F401
from planner import warm  # noqa: E402
from planner.pipeline.solve import solve  # noqa: E402
from planner.request.plan_request import parse_request  # noqa: E402


def _solve_a_small_one() -> None:
    """A training step of one layer, read and planned as any other."""
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


warm.load_cached()
if all(kernels.is_on_disk() for kernels in warm.KERNEL_SETS):
    _solve_a_small_one()
