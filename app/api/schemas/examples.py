"""Requests that the OpenAPI document shows: a small model of which a plan saves memory."""

from __future__ import annotations

from typing import Any

LAYERS, WIDTH, BATCH = 6, 64, 1024


def _model() -> dict[str, Any]:
    """The graph document of a perceptron from x0 to x6 whose rows are the symbolic dimension "batch"."""
    values: list[dict[str, Any]] = [{"name": "x0", "shape": ["batch", WIDTH], "dtype": "float32", "role": "input"}]
    nodes: list[dict[str, Any]] = []
    for k in range(1, LAYERS + 1):
        x, w, h, y = f"x{k - 1}", f"w{k}", f"h{k}", f"x{k}"
        values.append({"name": w, "shape": [WIDTH, WIDTH], "dtype": "float32", "role": "parameter"})
        nodes.append({"name": f"matmul{k}", "op": "MatMul", "inputs": [x, w], "outputs": [h]})
        nodes.append({"name": f"tanh{k}", "op": "Tanh", "inputs": [h], "outputs": [y]})
    return {"format": "remat/1", "values": values, "nodes": nodes, "outputs": [f"x{LAYERS}"]}


_TRAINED: dict[str, Any] = {"graph": _model(), "loss": f"cross_entropy:x{LAYERS}"}
PLAN = _TRAINED | {"dims": {"batch": BATCH}, "budget": "75%", "iterations": 50}
CURVE = _TRAINED | {"dims": {"batch": BATCH}, "budgets": ["90%", "75%"], "iterations": 50}
FIT = _TRAINED | {"grow": "batch", "max_overhead": "30%", "budget": "4MiB", "iterations": 50}
TAGS = {"tags": ["baseline", "release-1.4"], "note": "The plan of the run of 3 May."}
