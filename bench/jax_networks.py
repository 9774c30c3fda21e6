"""Networks in plain JAX and in Flax, as losses of parameters and a batch, for `bench/jax_training.py`.

Every network is made twice from one description: as it is, and with `jax.checkpoint` around each of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Wrap = Callable[[Any], Any]


class Network(NamedTuple):
    """A loss and the arguments of one call; parameters come first."""

    loss: Callable[..., Any]
    arguments: tuple[Any, ...]


def _weights(draw: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(draw.normal(size=shape) / np.sqrt(shape[0]), "float32")


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def _block_weights(draw: np.random.Generator, width: int) -> dict[str, jax.Array]:
    return {
        "norms": jnp.ones((2, width)),
        "qkv": _weights(draw, width, 3 * width),
        "out": _weights(draw, width, width),
        "up": _weights(draw, width, 4 * width),
        "down": _weights(draw, 4 * width, width),
    }


def _dropped(x: jax.Array, key: jax.Array | None) -> jax.Array:
    return x if key is None else jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)


def _attention_block(
    x: jax.Array, block: dict[str, jax.Array], key: jax.Array | None, heads: int, causal: bool
) -> jax.Array:
    """Attention and a perceptron with dropout after each, before each a layer norm."""
    rows, length, width = x.shape
    keys = (None, None, None) if key is None else jax.random.split(key, 3)
    split = (_norm(x, block["norms"][0]) @ block["qkv"]).reshape(rows, length, 3, heads, width // heads)
    q, k, v = (split[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = (_dropped(jax.nn.softmax(scores, -1), keys[0]) @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)
    x = x + _dropped(mixed @ block["out"], keys[1])
    inner = jax.nn.gelu(_norm(x, block["norms"][1]) @ block["up"])
    return x + _dropped(inner @ block["down"], keys[2])


def _cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1).mean()


def gpt2(wrap: Wrap, full: bool) -> Network:
    """A decoder with dropout and tied embeddings; full: the sizes of GPT-2 small."""
    layers, width, heads, vocabulary, rows, length = (12, 768, 12, 50257, 1, 512) if full else (4, 128, 4, 512, 8, 64)
    draw = np.random.default_rng(0)
    params = {
        "tokens": _weights(draw, vocabulary, width),
        "places": _weights(draw, length, width),
        "blocks": [_block_weights(draw, width) for _ in range(layers)],
    }
    block = wrap(partial(_attention_block, heads=heads, causal=True))

    def loss(params: dict[str, Any], tokens: jax.Array, key: jax.Array) -> jax.Array:
        x = params["tokens"][tokens] + params["places"]
        for weights, inner in zip(params["blocks"], jax.random.split(key, layers), strict=True):
            x = block(x, weights, inner)
        return _cross_entropy((x @ params["tokens"].T)[:, :-1], tokens[:, 1:])

    return Network(loss, (params, jnp.asarray(draw.integers(0, vocabulary, (rows, length))), jax.random.key(0)))


def gpt2_scan(wrap: Wrap, full: bool) -> Network:
    """The decoder of `gpt2` as one `lax.scan` over its layers, whose weights are stacked."""
    plain_loss = gpt2(plain, full)
    params, tokens, key = plain_loss.arguments
    heads = 12 if full else 4
    stacked = {**params, "blocks": jax.tree.map(lambda *rows: jnp.stack(rows), *params["blocks"])}
    block = wrap(partial(_attention_block, heads=heads, causal=True))

    def loss(params: dict[str, Any], tokens: jax.Array, key: jax.Array) -> jax.Array:
        x = params["tokens"][tokens] + params["places"]
        layers = (params["blocks"], jax.random.split(key, len(params["blocks"]["qkv"])))
        x, _ = jax.lax.scan(lambda x, layer: (block(x, *layer), None), x, layers)
        return _cross_entropy((x @ params["tokens"].T)[:, :-1], tokens[:, 1:])

    return Network(loss, (stacked, tokens, key))


def vit(wrap: Wrap, full: bool) -> Network:
    """An encoder of image patches; full: the sizes of ViT-S/16."""
    layers, width, heads, side, patch, rows = (12, 384, 6, 224, 16, 8) if full else (4, 96, 3, 64, 8, 8)
    draw = np.random.default_rng(0)
    params = {
        "patches": _weights(draw, 3 * patch**2, width),
        "places": _weights(draw, (side // patch) ** 2, width),
        "blocks": [_block_weights(draw, width) for _ in range(layers)],
        "head": _weights(draw, width, 100),
    }
    block = wrap(partial(_attention_block, key=None, heads=heads, causal=False))

    def loss(params: dict[str, Any], images: jax.Array, labels: jax.Array) -> jax.Array:
        across = side // patch
        x = images.reshape(-1, across, patch, across, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(len(images), across**2, -1) @ params["patches"] + params["places"]
        for weights in params["blocks"]:
            x = block(x, weights)
        return _cross_entropy(x.mean(1) @ params["head"], labels)

    return Network(loss, (params, _weights(draw, rows, side, side, 3), jnp.arange(rows) % 100))


def _lstm_layer(sequence: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """One layer over time, time first, with `lax.scan`."""

    def cell(state: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
        hidden, memory = state
        gates = jnp.split(x + hidden @ weights["hidden"], 4, axis=-1)
        keep, write, read = (jax.nn.sigmoid(gate) for gate in gates[:3])
        memory = keep * memory + write * jnp.tanh(gates[3])
        hidden = read * jnp.tanh(memory)
        return (hidden, memory), hidden

    inputs = sequence @ weights["input"]
    start = jnp.zeros((sequence.shape[1], weights["hidden"].shape[0]))
    return jax.lax.scan(cell, (start, start), inputs)[1]


def lstm(wrap: Wrap, full: bool) -> Network:
    """A stack of LSTM layers with residual connections, each a `lax.scan` over time."""
    layers, width, length, rows = (6, 512, 128, 32) if full else (4, 64, 32, 16)
    draw = np.random.default_rng(0)
    params = {
        "layers": [
            {"input": _weights(draw, width, 4 * width), "hidden": _weights(draw, width, 4 * width)}
            for _ in range(layers)
        ],
        "head": _weights(draw, width, width),
    }
    layer = wrap(_lstm_layer)

    def loss(params: dict[str, Any], sequence: jax.Array, wanted: jax.Array) -> jax.Array:
        x = sequence
        for weights in params["layers"]:
            x = x + layer(x, weights)
        return jnp.mean((jnp.tanh(x @ params["head"]) - wanted) ** 2)

    return Network(loss, (params, _weights(draw, length, rows, width), _weights(draw, length, rows, width)))


def flax_mixer(wrap: Wrap, full: bool) -> Network:
    """An MLP-Mixer of Flax modules; `wrap` is `jax.checkpoint` or nothing, here Flax's `nn.remat` or nothing."""
    from flax import linen

    layers, width, places, rows = (8, 512, 196, 8) if full else (4, 64, 64, 8)

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            mixed = linen.LayerNorm()(x).swapaxes(1, 2)
            x = x + linen.Dense(places)(linen.gelu(linen.Dense(width // 2)(mixed))).swapaxes(1, 2)
            return x + linen.Dense(width)(linen.gelu(linen.Dense(4 * width)(linen.LayerNorm()(x))))

    made = Block if wrap is plain else linen.remat(Block)

    class Mixer(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for place in range(layers):
                x = made(name=f"block{place}")(x)
            return linen.Dense(100)(linen.LayerNorm()(x).mean(1))

    draw = np.random.default_rng(0)
    patches, model = _weights(draw, rows, places, width), Mixer()
    params = model.init(jax.random.key(0), patches)

    def loss(params: Any, patches: jax.Array, labels: jax.Array) -> jax.Array:
        return _cross_entropy(model.apply(params, patches), labels)

    return Network(loss, (params, patches, jnp.arange(rows) % 100))


def plain(function: Any) -> Any:
    """Wraps nothing."""
    return function


NETWORKS: dict[str, Callable[[Wrap, bool], Network]] = {
    "gpt2": gpt2,
    "gpt2_scan": gpt2_scan,
    "vit": vit,
    "lstm": lstm,
    "flax_mixer": flax_mixer,
}
