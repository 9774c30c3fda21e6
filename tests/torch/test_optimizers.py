"""Optimizer ops against torch.optim: three steps of a matrix and a vector in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graph.builder.builder import Builder
from graph.ir import Graph, Role, TensorType
from graph.training.step import training_step
from tests.graph.evaluate import evaluate

X = np.random.default_rng(3).normal(size=(8, 5))
START = {"w": np.random.default_rng(4).normal(size=(5, 6)), "b": np.random.default_rng(5).normal(size=6)}
STEPS = 3


def model() -> Graph:
    """loss = sum(tanh(x w + b)²)"""
    builder = Builder("layer")
    x = builder.value("x", TensorType("float64", X.shape), Role.INPUT)
    w, b = (builder.value(name, TensorType("float64", START[name].shape), Role.PARAMETER) for name in START)
    (h,) = builder.node("MatMul", [x, w], name="fc")
    (h,) = builder.node("Add", [h, b], name="bias")
    (y,) = builder.node("Tanh", [h], name="tanh")
    (loss,) = builder.node("ReduceSumSquare", [y], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


def ours(recipe: dict[str, Any]) -> dict[str, np.ndarray]:
    """The parameters after `STEPS` steps of the recipe."""
    step, _ = training_step(model(), "loss", recipe)
    held = {
        value.name: value.data if value.data is not None else np.zeros(value.type.shape)
        for value in step.values
        if value.role is Role.STATE and value.type is not None
    } | START
    aliases = {
        step.values[v].name: step.values[node.inputs[i]].name
        for node in step.nodes
        for v, i in ((node.outputs[o], i) for o, i in node.in_place)
    }
    for _ in range(STEPS):
        values = evaluate(step, {"x": X, **held})
        held = {old: values[new] for new, old in aliases.items() if old in held} | {}
    return {name: held[name] for name in START}


def torchs(make: Any) -> dict[str, np.ndarray]:
    parameters = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in START.items()}
    optimizer = make(list(parameters.values()))
    for _ in range(STEPS):
        optimizer.zero_grad()
        (torch.tanh(torch.tensor(X) @ parameters["w"] + parameters["b"]) ** 2).sum().backward()
        optimizer.step()
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


@pytest.mark.parametrize(
    ("recipe", "make"),
    [
        (
            {"optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
        ),
        (
            {"optimizer": "adam", "learning_rate": 0.02, "betas": [0.8, 0.95], "epsilon": 1e-6, "weight_decay": 0.1},
            lambda p: torch.optim.AdamW(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
        ),
        (
            {"optimizer": "adafactor", "learning_rate": 0.05, "weight_decay": 0.1},
            lambda p: torch.optim.Adafactor(p, lr=0.05, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "adamw", "adafactor"],
)
def test_steps_are_those_of_torch(recipe: dict[str, Any], make: Any) -> None:
    found, expected = ours(recipe), torchs(make)
    for name in START:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-12)
