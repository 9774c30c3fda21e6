"""A training loop with Flax and Optax within a budget: `jax.value_and_grad` is replaced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen

import remat.jax


class Network(linen.Module):
    """Residual blocks with dropout."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(4):
            inner = linen.gelu(linen.Dense(256)(linen.LayerNorm()(x)))
            x = x + linen.Dense(64)(linen.Dropout(0.1, deterministic=False)(inner))
        scores: jax.Array = linen.Dense(10)(x)
        return scores


def main(budget: str = "70%") -> None:
    model, optimizer = Network(), optax.adamw(1e-3)
    inputs, labels = jax.random.normal(jax.random.key(0), (512, 64)), jnp.arange(512) % 10
    params = model.init({"params": jax.random.key(1), "dropout": jax.random.key(2)}, inputs)
    state = optimizer.init(params)

    def loss(params: Any, inputs: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        scores = model.apply(params, inputs, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    planned = remat.jax.optimize(loss, params, inputs, labels, jax.random.key(0), budget=budget, search_seconds=2)

    def step(params: Any, state: Any, key: jax.Array) -> Any:
        value, gradients = planned(params, inputs, labels, key)
        updates, state = optimizer.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    compiled = jax.jit(step, compiler_options=remat.jax.compiler_options())
    for number in range(4):
        value, params, state = compiled(params, state, jax.random.key(number))
    print(f"loss {value:.3f}", planned.report)


if __name__ == "__main__":
    main()
