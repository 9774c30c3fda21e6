"""Numerical comparison of the results of two equivalent graphs: outputs, and gradients by parameter.

Sums in parts or in another order round differently, so results are not compared bit for bit. An error is relative to
the largest element of its array, or to SCALE_FLOOR times the largest element of all arrays if that is more: a gradient
that is zero up to rounding has no scale of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graph.execution.interpreter import execute
from graph.execution.sample_inputs import sample_arrays
from graph.ir import FLOAT_DTYPES, Graph, producers
from graph.ops.registry.onnx_fallback import type_of_array

#: Largest relative error explained by rounding, by the dtype of the result; 0 for integers and bools.
TOLERANCE: Mapping[str, float] = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
SCALE_FLOOR = 1e-2  # of the largest element of all results

Results = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """The result with the largest error relative to the tolerance of its dtype."""

    name: str  # "" if the results have no name in common
    error: float  # relative; inf if types or integers differ
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.tolerance


def sample_feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Sample arrays of inputs, parameters and states by name; deterministic in `seed`."""
    written, values = producers(graph), graph.values
    samples = sample_arrays(graph, seed)
    return {values[v].name: a for v, a in samples.items() if written[v] < 0 and values[v].data is None}


def run_results(graph: Graph, fed: Results, seed: int = 0) -> dict[str, np.ndarray]:
    """Outputs of a run by name, a gradient as `gradient of NAME`; names in `fed` that the graph lacks are ignored.

    Raises CannotExecute.
    """
    known = {value.name for value in graph.values}
    outputs = execute(graph, {name: a for name, a in fed.items() if name in known}, seed=seed).outputs
    gradients = {graph.values[g].name: f"gradient of {graph.values[v].name}" for v, g in graph.gradients}
    return {gradients.get(name, name): array for name, array in outputs.items()}


def worst_discrepancy(found: Results, expected: Results) -> Discrepancy:
    """The worst discrepancy over the names that both have."""
    common = [name for name in expected if name in found]
    floor = SCALE_FLOOR * max((_largest(expected[name]) for name in common if _is_float(expected[name])), default=0.0)
    worst = Discrepancy("", 0.0, 0.0)
    for name in common:
        candidate = Discrepancy(name, *_error(found[name], expected[name], floor))
        if not worst.name or candidate.error * (worst.tolerance or 1e-300) > worst.error * (
            candidate.tolerance or 1e-300
        ):
            worst = candidate
    return worst


def _error(found: np.ndarray, expected: np.ndarray, floor: float) -> tuple[float, float]:
    """(relative error, tolerance)"""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return np.inf, 0.0
    if not _is_float(expected):
        return (0.0 if np.array_equal(found, expected) else np.inf), 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    tolerance = TOLERANCE.get(type_of_array(expected).dtype, 0.1)
    odd = ~np.isfinite(b)
    if not np.array_equal(a[odd], b[odd], equal_nan=True) or not np.isfinite(a[~odd]).all():
        return np.inf, tolerance
    error = float(np.abs(a[~odd] - b[~odd]).max(initial=0.0))
    return error / (max(_largest(expected), floor) or 1.0), tolerance


def _largest(array: np.ndarray) -> float:
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0.0))


def _is_float(array: np.ndarray) -> bool:
    return type_of_array(array).dtype in FLOAT_DTYPES
