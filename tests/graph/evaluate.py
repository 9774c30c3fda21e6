"""Plain evaluation of small graphs, node after node, for tests of what graphs compute."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graph.ir import ABSENT, Graph
from graph.ops.registry import run
from graph.ops.registry.registry import make_call


def evaluate(graph: Graph, given: Mapping[str, np.ndarray], bounded: bool = False) -> dict[str, np.ndarray]:
    """Every value of the graph by name, from what is given and the constants.

    `bounded`: types are upper bounds of the lengths; otherwise shapes are those of the types.
    """
    arrays: dict[int, np.ndarray] = {}
    for v, value in enumerate(graph.values):
        if value.name in given:
            arrays[v] = given[value.name]
        elif value.data is not None:
            arrays[v] = value.data
    for node in graph.nodes:
        inputs = [None if v == ABSENT else arrays[v] for v in node.inputs]
        results = run(make_call(graph, node), *inputs)
        for v, result in zip(node.outputs, results, strict=False):
            if v != ABSENT:
                type = graph.values[v].type
                assert result is not None
                assert type is not None and result.ndim == len(type.shape), f"{node.name}: {result.shape} is not {type}"
                fits = all(
                    n <= limit if bounded else n == limit for n, limit in zip(result.shape, type.shape, strict=True)
                )
                assert fits, f"{node.name}: {result.shape} is not {type}"
                arrays[v] = result
    return {graph.values[v].name: array for v, array in arrays.items()}
