"""Gradients of gradients against finite differences: what rules write has rules, or a body of ops that have."""

from __future__ import annotations

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.errors import BadGraph, NoGradient
from tests.contracts.gradient_examples import EXAMPLES, Example
from tests.contracts.test_every_gradient import built, targets_of
from tests.graph.evaluate import evaluate

#: Ops whose gradient is one node with a kernel of its own and no body, or hands out statistics nobody differentiates.
ONCE = {"GRU", "LSTM", "RNN", "LayerNormalization", "remat::BatchNorm"}
#: Examples at points where the derivative of the gradient does not exist, or of one float type only.
APART = {"Celu"}
STEP = 1e-5

FIRST = {example.op: example for example in reversed(EXAMPLES) if example.dtype == "float64"}


def twice(example: Example) -> tuple[dict[str, float], dict[str, float]]:
    """By input, the slope of the weighted sum of first gradients along a direction: found, and by differences."""
    graph, given = built(example)
    targets = targets_of(graph, given)[0]
    once = differentiate(graph, targets, head_gradients={name: f"d{name[1:]}" for name in targets})
    chance = np.random.default_rng(1)
    first = [once.values[gradient].name for _, gradient in once.gradients]
    weights = [chance.uniform(-1, 1, given[once.values[v].name].shape) for v, _ in once.gradients]
    again = differentiate(once, first, list(given), head_gradients=[{"value": w.tolist()} for w in weights])
    values = evaluate(again, given)

    def total(at: dict[str, np.ndarray]) -> float:
        made = evaluate(once, at)
        return sum(float((made[name] * weight).sum()) for name, weight in zip(first, weights, strict=True))

    found, expected = {}, {}
    for v, gradient in again.gradients[len(once.gradients) :]:
        name = again.values[v].name
        along = STEP * chance.uniform(-1, 1, given[name].shape)
        found[name] = float((values[again.values[gradient].name] * along).sum() / STEP)
        up, down = total({**given, name: given[name] + along}), total({**given, name: given[name] - along})
        expected[name] = (up - down) / (2 * STEP)
    return found, expected


@pytest.mark.parametrize("example", [e for op, e in FIRST.items() if op not in ONCE | APART], ids=str)
def test_a_gradient_is_differentiated_again(example: Example):
    found, expected = twice(example)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_product_over_zeros_is_differentiated_again():
    zeros = [example for example in EXAMPLES if example.op == "ReduceProd" and (example.inputs[0] == 0).any()]
    for example in zeros:
        found, expected = twice(example)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert zeros


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_a_recurrent_op_says_in_which_form_it_is_differentiated_again(op: str):
    with pytest.raises(NoGradient, match="expand_recurrent"):
        twice(FIRST[op])


@pytest.mark.parametrize("op", sorted(ONCE & FIRST.keys()))
def test_a_gradient_that_cannot_be_differentiated_again_says_so(op: str):
    with pytest.raises((NoGradient, BadGraph), match=r"grad/node|statistics"):
        twice(FIRST[op])
