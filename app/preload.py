"""Imported once by the process that child processes are forked from, so that each starts in milliseconds.

Compiled kernels that are on the disk are there as well: a child that loads them itself pays a second.
"""

import importlib
import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported: children share the machine

for _name in (
    "planner.pipeline",
    "app.analysis",
    "app.transforms",
    "graph.importers",
    "graph.exporters.native",
    "graph.exporters.onnx",
):
    importlib.import_module(_name)

importlib.import_module("planner.warm").load()
