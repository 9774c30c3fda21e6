"""Operations of equations, beside XLA's own count."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from remat.jax.step.costs import flops_of

ROWS = 512


def product(x: jax.Array) -> jax.Array:
    return x @ x


def convolution(x: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x[None, None], jnp.ones((8, 1, 3, 3)), (1, 1), "VALID")


@pytest.mark.parametrize("function", [product, convolution])
def test_operations_are_those_that_xla_counts(function: Any) -> None:
    x = jnp.ones((64, 64))
    counted = jax.jit(function).lower(x).cost_analysis()["flops"]
    closed = jax.make_jaxpr(function)(x)
    assert sum(flops_of(equation) for equation in closed.jaxpr.eqns) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(("generator", "once"), [("threefry2x32", 45), ("rbg", 37)])
def test_draws_cost_their_generator(generator: str, once: int) -> None:
    """XLA counts one of the five rounds in the loop of threefry."""
    key = jax.random.key(0, impl=generator)
    drawn = jax.jit(lambda key: jax.random.bits(key, (ROWS,)))
    counted = drawn.lower(key).compile().cost_analysis()["flops"] / ROWS
    assert counted == pytest.approx(once, abs=1)
    (equation,) = jax.make_jaxpr(lambda key: jax.random.bits(key, (ROWS,)))(key).eqns
    rounds = 5 if generator == "threefry2x32" else 1
    assert flops_of(equation) / ROWS == pytest.approx(rounds * (counted - rounds) if rounds > 1 else counted, rel=0.05)
