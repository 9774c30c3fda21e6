"""Small networks in plain JAX: functions of parameters and a batch that return a loss."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: XLA rewrites arithmetic and fuses by what stands around it; without both, equal equations give equal bits.
NO_REWRITES = {
    "xla_disable_hlo_passes": "algsimp,fusion,cse_barrier_expander",
    "xla_cpu_experimental_ynn_fusion_type": "",
}
VOCABULARY, WIDTH, LENGTH = 64, 32, 16


def _normal(generator: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(generator.normal(size=shape) * 0.2, "float32")


def perceptron(params: list[Any], batch: jax.Array) -> jax.Array:
    """Blocks of two linear layers and a GELU."""
    hidden = batch
    for up, down in params:
        hidden = hidden + jax.nn.gelu(hidden @ up) @ down
    return jnp.mean(hidden * hidden)


def perceptron_arguments(layers: int = 4, rows: int = 64) -> tuple[Any, ...]:
    draw = np.random.default_rng(0)
    params = [(_normal(draw, WIDTH, 4 * WIDTH), _normal(draw, 4 * WIDTH, WIDTH)) for _ in range(layers)]
    return params, _normal(draw, rows, WIDTH)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def _dropped(x: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)


def decoder(params: dict[str, Any], tokens: jax.Array, key: jax.Array) -> jax.Array:
    """A transformer with attention, dropout and tied embeddings."""
    x = params["embedding"][tokens]
    mask = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))
    for i, block in enumerate(params["blocks"]):
        inner = jax.random.fold_in(key, i)
        q, k, v = jnp.split(_norm(x, block["norm"]) @ block["qkv"], 3, axis=-1)
        weights = jax.nn.softmax(jnp.where(mask, q @ k.transpose(0, 2, 1), -1e9), -1)
        x = x + _dropped(weights, jax.random.fold_in(inner, 0)) @ v @ block["out"]
        x = (
            x
            + _dropped(jax.nn.gelu(_norm(x, block["norm"]) @ block["up"]), jax.random.fold_in(inner, 1)) @ block["down"]
        )
    scores = jax.nn.log_softmax(x @ params["embedding"].T)
    return -jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], -1).mean()


def decoder_arguments(layers: int = 1, rows: int = 4) -> tuple[Any, ...]:
    draw = np.random.default_rng(0)
    blocks = [
        {
            "norm": jnp.ones(WIDTH),
            "qkv": _normal(draw, WIDTH, 3 * WIDTH),
            "out": _normal(draw, WIDTH, WIDTH),
            "up": _normal(draw, WIDTH, 4 * WIDTH),
            "down": _normal(draw, 4 * WIDTH, WIDTH),
        }
        for _ in range(layers)
    ]
    params = {"embedding": _normal(draw, VOCABULARY, WIDTH), "blocks": blocks}
    return params, jnp.asarray(draw.integers(0, VOCABULARY, (rows, LENGTH)), "int32"), jax.random.key(7)


def convolutions(params: list[jax.Array], images: jax.Array) -> jax.Array:
    """Convolutions with ReLU and pooling."""
    x = images
    for kernel in params:
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME"))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.mean(x**2)


def convolutions_arguments() -> tuple[Any, ...]:
    draw = np.random.default_rng(0)
    return [_normal(draw, 8, 3, 3, 3), _normal(draw, 8, 8, 3, 3)], _normal(draw, 2, 3, 16, 16)


def recurrent(params: dict[str, jax.Array], sequence: jax.Array) -> jax.Array:
    """A recurrent cell over time with `lax.scan`."""

    def cell(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ params["hidden"] + x @ params["input"])
        return state, state

    _, states = jax.lax.scan(cell, jnp.zeros((sequence.shape[1], WIDTH)), sequence)
    return jnp.mean(jax.nn.softplus(states @ params["out"]))


def recurrent_arguments() -> tuple[Any, ...]:
    draw = np.random.default_rng(0)
    params = {name: _normal(draw, WIDTH, WIDTH) for name in ("hidden", "input", "out")}
    return params, _normal(draw, 6, 4, WIDTH)


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    """The identity, whose gradient is clipped."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, gradient: (jnp.clip(gradient, -0.01, 0.01),))


def custom(params: list[jax.Array], batch: jax.Array) -> jax.Array:
    """Custom derivatives, a checkpoint of the user, and a nested jit called twice."""
    layer = jax.jit(lambda x, w: jnp.sin(x @ w))
    x = jax.checkpoint(lambda x: jnp.tanh(x @ params[0]))(batch)
    x = clipped(layer(layer(x, params[1]), params[1]))
    return jnp.mean(jax.nn.relu(x) + jax.nn.logsumexp(x, -1, keepdims=True))


def custom_arguments() -> tuple[Any, ...]:
    draw = np.random.default_rng(0)
    return [_normal(draw, WIDTH, WIDTH), _normal(draw, WIDTH, WIDTH)], _normal(draw, 8, WIDTH)


MODELS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "perceptron": (perceptron, perceptron_arguments()),
    "decoder": (decoder, decoder_arguments()),
    "convolutions": (convolutions, convolutions_arguments()),
    "recurrent": (recurrent, recurrent_arguments()),
    "custom": (custom, custom_arguments()),
}
