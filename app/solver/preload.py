"""Imported once by the forkserver, so that child processes start in milliseconds.

It loads cached numba kernels, which would take each child a second. A small solve triggers all lazy imports and
first-use initialization.
"""

import json
import os

# Imports after statements: environment variables are set before numpy is imported.

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # children share the cores

from app.models import analysis, transforms  # noqa: E402, F401
from app.solver import child_tasks  # noqa: E402
from graph.formats import readers  # noqa: E402, F401
from graph.formats.native import writer as _native  # noqa: E402, F401
from graph.formats.onnx import writer as _onnx  # noqa: E402, F401
from planner import warm  # noqa: E402
from planner.pipeline.solve import solve  # noqa: E402
from planner.request.plan_request import parse_request  # noqa: E402


def _solve_small_model() -> None:
    """Load and plan a training step of one layer."""
    values = [{"name": name, "shape": [16], "dtype": "float32"} for name in ("h", "y", "dy", "dh", "dx")]
    forward = [("f", ["x"], ["h"]), ("g", ["h"], ["y"])]
    backward = [("dg", ["y"], ["dy"]), ("dm", ["h", "dy"], ["dh"]), ("df", ["x", "dh"], ["dx"])]
    nodes = [
        {"name": name, "op": "remat.preload::Layer", "inputs": reads, "outputs": writes, "phase": phase}
        for phase, layers in (("forward", forward), ("backward", backward))
        for name, reads, writes in layers
    ]
    input_value = {"name": "x", "shape": [16], "dtype": "float32", "role": "input"}
    document = {"format": "remat/1", "name": "", "values": [input_value, *values], "nodes": nodes, "outputs": ["dx"]}
    fields = {"planner": "anneal", "iterations": 1, "budget": "99%", "return": ["plan", *child_tasks.SECTIONS]}
    solve(json.dumps(document).encode(), parse_request(fields))


warm.load_cached()
if all(kernels.is_on_disk() for kernels in warm.KERNEL_SETS):
    _solve_small_model()
