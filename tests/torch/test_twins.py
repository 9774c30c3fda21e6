"""Random graphs, and random nested loops, have PyTorch's loss and gradients; `bench/soak.py --torch` runs many more."""

from __future__ import annotations

import random

import pytest

from bench import soak
from bench.torch_twins import Twin
from graph.autodiff.gradients.registry import GRADIENT_RULES, GradientRule


@pytest.mark.parametrize("number", range(10))
def test_a_random_graph_is_as_in_torch(number: int) -> None:
    assert soak.graph_beside_torch(11, number) in {("as PyTorch", ""), ("without a gradient", "")}


@pytest.mark.parametrize("number", range(5))
def test_random_nested_loops_are_as_in_torch(number: int) -> None:
    assert soak.loops_beside_torch(11, number) in {("as PyTorch", ""), ("without a gradient", "")}


def test_a_wrong_rule_differs_from_torch_and_from_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRADIENT_RULES, "Tanh", GradientRule(lambda emit, node, dz: (dz,), zeros=False))
    lines = Twin(random.Random("11/0"), loops=False).differences()
    assert any(line.startswith("gradient of w") for line in lines)
    assert any("finite differences" in line for line in lines)
