"""Bodies written in a few lines, and gradients held against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.ir import Body, Graph, Role, TensorType

ROW = TensorType("float64", (3,))
ROWS = TensorType("float64", (4, 3))
SQUARE = TensorType("float64", (3, 3))
COUNT, FLAG = TensorType("int64", ()), TensorType("bool", ())

#: make(builder of the body, its values by name) -> its outputs
Make = Callable[[Builder, Mapping[str, int]], Sequence[int]]


def body_of(outer: Builder, formals: Mapping[str, TensorType], captured: Sequence[int], make: Make) -> Body:
    """A body with these formal inputs that captures values of `outer` under their names there."""
    inner = Builder("body")
    names = {name: inner.value(name, type, Role.INPUT) for name, type in formals.items()}
    inputs = list(inner.inputs)
    captures = []
    for v in captured:
        value = outer.values[v]
        names[value.name] = inner.value(value.name, value.type, Role.INPUT)
        captures.append((names[value.name], v))
    outputs = make(inner, names)
    graph = Graph("body", tuple(inner.values), tuple(inner.nodes), tuple(outputs), tuple(inputs), inner.opset)
    return Body(graph, tuple(captures))


def bodies(**found: Body) -> Mapping[str, Body]:
    return MappingProxyType(found)


def loss_of(builder: Builder, *values: int, name: str = "loss") -> Graph:
    """The graph with a loss of that name that weighs every element of these values differently."""
    parts = []
    for v in values:
        type = builder.values[v].type
        assert type is not None
        weights = np.cos(np.arange(type.elements, dtype=np.float64).reshape(type.shape) + len(parts))
        (weighed,) = builder.node("Mul", [v, builder.constant(weights)])
        parts.append(builder.node("ReduceSum", [weighed], attributes={"keepdims": 0})[0])
    (loss,) = builder.node("Sum", parts, outputs=[name])
    return builder.build([loss, *values])


def random_feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Numbers for floating inputs and parameters."""
    chance = np.random.default_rng(seed)
    return {
        value.name: chance.uniform(-1, 1, value.type.shape)
        for value in graph.values
        if value.role in (Role.INPUT, Role.PARAMETER) and value.type is not None and value.type.dtype == "float64"
    }


def gradients_of(step: Graph, at: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, np.ndarray]:
    """Gradient of each wanted value by its name."""
    names = {step.values[v].name: step.values[dv].name for v, dv in step.gradients}
    ran = execute(step, at, seed=seed, keep=set(names.values()))
    return {name: ran.values[gradient] for name, gradient in names.items()}


def check_gradients(
    graph: Graph, at: Mapping[str, np.ndarray] | None = None, *, loss: str = "loss", **asked: Any
) -> Graph:
    """The differentiated graph, after its gradients agreed with finite differences of the loss."""
    at = {**random_feeds(graph), **(at or {})}
    asked.setdefault("unreachable", "zeros")
    step = differentiate(graph, [loss], **asked)
    found = gradients_of(step, at)
    found = {name: found[name] for name in asked.get("wanted", found)}
    assert found
    chance = np.random.default_rng(1)
    before = execute(graph, at).outputs
    after = execute(step, at).outputs
    assert all((after[name] == array).all() for name, array in before.items())
    for name, gradient in found.items():
        direction = chance.uniform(-1, 1, at[name].shape)
        ahead, behind = (
            execute(graph, {**at, name: at[name] + offset * direction}).outputs[loss] for offset in (1e-5, -1e-5)
        )
        assert (gradient * direction).sum() == pytest.approx((ahead - behind) / 2e-5, rel=1e-5, abs=1e-7), name
    return step
