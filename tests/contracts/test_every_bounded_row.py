"""Every op that claims to treat rows alike: its gradient on an input that has fewer rows than its type.

The truth is the gradient of the same node on inputs of the actual lengths.
"""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.control_flow.bounded_rows import is_rowwise
from graph.builder.builder import Builder
from graph.errors import BadGraph, NoGradient
from graph.ir import ABSENT, Graph, Node, Role
from graph.ops.registry.onnx_fallback import type_of_array
from tests.contracts.gradient_examples import EXAMPLES, Example
from tests.contracts.test_every_gradient import built, gradients_of, targets_of
from tests.graph.evaluate import evaluate

EXTRA_ROWS = 2  # of the type beyond the rows there are


def claimed(example: Example) -> list[tuple[int, ...]]:
    """Sets of inputs that may have fewer rows than their types."""
    node = Node(example.op, example.op, (), ())
    free = [i for i, array in enumerate(example.inputs) if array is not None and array.ndim]
    sets = chain.from_iterable(combinations(free, n) for n in range(1, len(free) + 1))
    return [bounded for bounded in sets if is_rowwise(node, bounded)]


ROWWISE = sorted({example.op for example in EXAMPLES if claimed(example)})


def padded(array: np.ndarray, shape: tuple[int, ...], fill: float) -> np.ndarray:
    """`array` in the leading corner of a larger array."""
    result = np.full(shape, fill, array.dtype)
    result[tuple(slice(n) for n in array.shape)] = array
    return result


def bounded_graph(example: Example, bounded: tuple[int, ...]) -> tuple[Graph, dict[str, np.ndarray]]:
    """The graph of `built` whose inputs `bounded` are the first rows of larger inputs. Raises BadGraph."""
    graph, given = built(example)
    builder = Builder("one op on bounded rows", {"": example.opset})
    ids = []
    for i, v in enumerate(graph.nodes[0].inputs):
        if v == ABSENT:
            ids.append(ABSENT)
            continue
        value, name = graph.values[v], f"x{i}"
        if i not in bounded:
            ids.append(builder.value(name, value.type, value.role, data=value.data))
            continue
        constant = value.data is not None
        array = value.data if constant else given[name]
        full = padded(array, (array.shape[0] + EXTRA_ROWS, *array.shape[1:]), 0 if constant else 7)
        role = Role.CONSTANT if constant else Role.PARAMETER
        source = builder.value(name, type_of_array(full), role, data=full if constant else None)
        given |= {} if constant else {name: full}
        lengths = builder.constant(np.array(array.shape), f"{name}/lengths")
        ids += builder.node("remat::FirstRows", [source, lengths], name=f"{name}/rows", outputs=[f"{name}/short"])
    slots = [graph.values[v].name if v != ABSENT else None for v in graph.nodes[0].outputs]
    outputs = builder.node(example.op, ids, name="node", outputs=slots, attributes=dict(example.attributes))
    for i, v in enumerate(outputs):
        if f"d{i}" in given:
            type = builder.values[v].type
            assert type is not None
            builder.value(f"d{i}", type, Role.INPUT)
            given[f"d{i}"] = padded(given[f"d{i}"], type.shape, 11.0)
    return builder.build([v for v in outputs if v != ABSENT]), given


def tried(example: Example) -> int:
    """Number of sets of bounded inputs whose gradients were compared."""
    exact_graph, exact = built(example)
    count = 0
    for bounded in claimed(example):
        targets = targets_of(exact_graph, exact)[0]
        try:
            graph, given = bounded_graph(example, bounded)
            step = differentiate(graph, targets, head_gradients={name: f"d{name[1:]}" for name in targets})
        except (BadGraph, NoGradient, ValueError):  # inputs that have to agree, or a refusal
            continue
        values = evaluate(step, given, bounded=True)
        found = {step.values[x].name: values[step.values[dx].name] for x, dx in step.gradients}
        for name, gradient in gradients_of(exact_graph, exact, targets).items():
            wanted = padded(gradient, found[name].shape, 0.0)
            np.testing.assert_allclose(found[name], wanted, rtol=1e-6, atol=1e-9, err_msg=f"{bounded} {name}")
        count += 1
    return count


@pytest.mark.parametrize("op", ROWWISE)
def test_gradient_on_bounded_rows_is_that_of_the_actual_rows(op: str) -> None:
    assert sum(tried(example) for example in EXAMPLES if example.op == op)
