"""Rotary embeddings of the standard and of onnxruntime.

    (a, b) ──▶ (cos · a - sin · b, sin · a + cos · b)

for the halves of the rotated part of a head, or for its even and odd places (interleaved).
Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from __future__ import annotations

import numpy as np

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.numeric.by_body import Unsupported, composite
from graph.ops.registry.registry import Call


def rotated(e: Emit, x: Val, cos: Val, sin: Val, interleaved: bool) -> Val:
    """`x` [..., d] with its first 2 r entries rotated; cos and sin broadcast to [..., r]."""
    width = 2 * cos.shape[-1]
    part, rest = x, None
    if width > x.shape[-1]:
        raise ValueError(f"{width} rotated places in heads of width {x.shape[-1]}")
    if width < x.shape[-1]:
        part, rest = e.op("Split", x, e.ints([width, x.shape[-1] - width]), outputs=2, axis=-1)
    pairs = e.reshape(part, (*part.shape[:-1], *((width // 2, 2) if interleaved else (2, width // 2))))
    axis = pairs.rank - (1 if interleaved else 2)
    half = (*part.shape[:-1], width // 2)
    a, b = (e.reshape(x, half) for x in e.op("Split", pairs, e.ints([1, 1]), outputs=2, axis=axis))
    real, imaginary = e.sub(e.mul(cos, a), e.mul(sin, b)), e.add(e.mul(sin, a), e.mul(cos, b))
    column = (*half[:-1], *((half[-1], 1) if interleaved else (1, half[-1])))
    turned = e.op("Concat", e.reshape(real, column), e.reshape(imaginary, column), axis=axis)
    turned = e.reshape(turned, part.shape)
    return turned if rest is None else e.op("Concat", turned, rest, axis=-1)


def rotate_heads(e: Emit, x: Val, cos: Val, sin: Val, heads: int, interleaved: bool) -> Val:
    """`x` [B, L, heads · d] or [B, heads, L, d] rotated; cos and sin are [B or 1, L, r]."""
    axis = 1 if x.rank == 4 else 2
    cos, sin = (e.reshape(c, (*c.shape[:axis], 1, *c.shape[axis:])) for c in (cos, sin))
    if x.rank == 4:
        return rotated(e, x, cos, sin, interleaved)
    if heads < 1 or x.shape[2] % heads:
        raise ValueError(f"{x.type} cannot be split into {heads} heads")
    split = e.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
    return e.reshape(rotated(e, split, cos, sin, interleaved), x.shape)


def _rotary(e: Emit, call: Call, x: Val, cos: Val, sin: Val, positions: Val | None = None) -> Val:
    if positions is not None:
        cos, sin = e.op("Gather", cos, positions), e.op("Gather", sin, positions)
    width = int(call.attribute("rotary_embedding_dim", 0))
    if width and width != 2 * cos.shape[-1]:
        raise ValueError(f"rotary_embedding_dim {width} for caches of width {cos.shape[-1]}")
    heads = int(call.attribute("num_heads", 0))
    return rotate_heads(e, x, cos, sin, heads, bool(call.attribute("interleaved", 0)))


def _contrib_rotary(e: Emit, call: Call, x: Val, positions: Val, cos: Val, sin: Val) -> Val:
    if call.attribute("is_packed_batching", 0) or call.attribute("scale", 1.0) != 1.0:
        raise Unsupported("is_packed_batching and scale are not supported")
    length = x.shape[2] if x.rank == 4 else x.shape[1]
    if positions.shape == (1,):  # the position of the first query
        positions = e.reshape(e.add(positions, e.constant(np.arange(length))), (1, length))
    heads = int(call.attribute("num_heads", 0))
    if not heads and x.rank == 3:
        heads = x.shape[2] // (2 * cos.shape[-1])
    cos, sin = e.op("Gather", cos, positions), e.op("Gather", sin, positions)
    return rotate_heads(e, x, cos, sin, heads, bool(call.attribute("interleaved", 0)))


composite("RotaryEmbedding", _rotary)
composite("com.microsoft::RotaryEmbedding", _contrib_rotary)
