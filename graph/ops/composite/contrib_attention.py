"""Attention ops of onnxruntime: packed or projected operands, padding masks, rotation inside, caches.

Source: onnxruntime, ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graph.builder.emit import Emit
from graph.errors import CannotExecute
from graph.ir import TensorType, Val
from graph.ops.composite.attention import Mask, attend, both, merge_heads, split_heads
from graph.ops.composite.rotary import rotated
from graph.ops.numeric.by_body import Unsupported, composite
from graph.ops.registry.registry import HEAVY, Call


def _multi_head(
    e: Emit,
    call: Call,
    q: Val,
    k: Val | None = None,
    v: Val | None = None,
    bias: Val | None = None,
    padding: Val | None = None,
    added: Val | None = None,
    past_key: Val | None = None,
    past_value: Val | None = None,
    *others: Val | None,
) -> tuple[Val | None, ...]:
    heads = _heads(call)
    if any(x is not None for x in others):
        raise Unsupported("past_sequence_length and cache_indirection are not supported")
    q, k, v = _separate(e, q, k, v)
    widths = [heads * x.shape[3] if x.rank == 4 else x.shape[2] for x in (q, k, v)]
    biases: Sequence[Val | None] = (None, None, None)
    if bias is not None:
        biases = e.op("Split", bias, e.ints(widths), outputs=3, axis=0)
    q, k, v = (
        x if x.rank == 4 else split_heads(e, x if b is None else e.add(x, b), heads)
        for x, b in zip((q, k, v), biases, strict=True)
    )
    if past_key is not None and past_value is not None:
        k, v = e.op("Concat", past_key, k, axis=2), e.op("Concat", past_value, v, axis=2)
    y, scores = _masked(e, call, (q, k, v), padding, added, 3, k.shape[2] - q.shape[2])
    return merge_heads(e, y), k, v, scores


def _separate(e: Emit, q: Val, k: Val | None, v: Val | None) -> tuple[Val, Val, Val]:
    """Queries, keys and values from operands that may be packed: [B, L, H, 3, d], or keys [B, S, H, 2, d]."""
    if k is None:
        q, k, v = _unpacked(e, q, 3)
    elif v is None:
        k, v = _unpacked(e, k, 2)
    return q, k, v


def _unpacked(e: Emit, x: Val, count: int) -> list[Val]:
    if x.rank != 5 or x.shape[3] != count:
        raise ValueError(f"{x.type} is not packed as [batch, length, heads, {count}, width]")
    batch, length, heads, _, width = x.shape
    parts = e.op("Split", x, e.ints([1] * count), outputs=count, axis=3)
    return [e.reshape(part, (batch, length, heads * width)) for part in parts]


def _projected(
    e: Emit,
    call: Call,
    x: Val,
    weights: Val,
    bias: Val | None = None,
    padding: Val | None = None,
    past: Val | None = None,
    added: Val | None = None,
    *others: Val | None,
) -> tuple[Val | None, ...]:
    heads = _heads(call)
    if any(other is not None for other in others) or call.attribute("do_rotary", 0):
        raise Unsupported("past_sequence_length and do_rotary are not supported")
    mixed = e.matmul(x, weights)
    mixed = mixed if bias is None else e.add(mixed, bias)
    widths = [int(n) for n in call.attribute("qkv_hidden_sizes", ())] or [weights.shape[1] // 3] * 3
    q, k, v = (split_heads(e, part, heads) for part in e.op("Split", mixed, e.ints(widths), outputs=3, axis=2))
    if past is not None:
        old = e.op("Split", past, e.ints([1, 1]), outputs=2, axis=0)
        k, v = (
            e.op("Concat", e.reshape(before, before.shape[1:]), now, axis=2)
            for before, now in zip(old, (k, v), strict=True)
        )
    y, _ = _masked(e, call, (q, k, v), padding, added, 4, k.shape[2] - q.shape[2])
    if call.used[1:2] != (True,):
        return (merge_heads(e, y),)
    return merge_heads(e, y), e.op("Concat", *(e.reshape(x, (1, *x.shape)) for x in (k, v)), axis=0)


def _heads(call: Call) -> int:
    return int(call.attribute("num_heads", 0))


def _masked(
    e: Emit, call: Call, operands: tuple[Val, Val, Val], padding: Val | None, added: Val | None, shown: int, offset: int
) -> tuple[Val, Val | None]:
    """`attend` with the scores of padding lowered by mask_filter_value; the scores are output `shown`, if any."""
    q, k, _ = operands
    bias = added
    if padding is not None:
        seen = _seen(e, padding, q.shape[0], k.shape[2])
        low = float(call.attribute("mask_filter_value", -1e4))
        low = max(low, -65504.0) if q.dtype == "float16" else low
        bias = both(e, bias, e.where(seen, e.scalar_like(0, q), e.scalar_like(low, q)), "Add")
    highest = offset if call.attribute("unidirectional", 0) else None
    scale = float(call.attribute("scale", 0))
    return attend(e, *operands, Mask(bias, highest=highest), scale, shown=2 if call.used[shown:] else None)


def _seen(e: Emit, padding: Val, batch: int, keys: int) -> Val:
    """True where a key counts, for lengths [B], flags [B, S] or flags [B, L, S]."""
    if padding.shape == (batch,):
        return e.op("Less", e.constant(np.arange(keys), padding.dtype), e.reshape(padding, (batch, 1, 1, 1)))  # type: ignore[no-any-return]
    if padding.rank not in (2, 3) or padding.shape[0] != batch or padding.shape[-1] != keys:
        raise Unsupported(f"a padding mask of {padding.type} is not supported; give lengths [batch] or flags per key")
    flags = e.reshape(padding, (batch, 1, *((1,) if padding.rank == 2 else ()), *padding.shape[1:]))
    return e.op("Not", e.op("Equal", flags, e.scalar_like(0, flags)))  # type: ignore[no-any-return]


def _grouped(
    e: Emit,
    call: Call,
    q: Val,
    k: Val | None,
    v: Val | None,
    past_key: Val | None,
    past_value: Val | None,
    valid: Val,
    total: Val,
    cos: Val | None = None,
    sin: Val | None = None,
    positions: Val | None = None,
    added: Val | None = None,
    *others: Val | None,
) -> tuple[Val | None, ...]:
    """Causal attention; the cache is full up to the new keys, which the kernel checks (`valid` + 1 keys count)."""
    heads, own = _heads(call), int(call.attribute("kv_num_heads", 0))
    if any(x is not None for x in others) or call.attribute("smooth_softmax", 0) > 0:
        raise Unsupported("head_sink, smooth_softmax and quantized caches are not supported")
    if k is None or v is None:
        width = q.shape[2] // max(1, heads + 2 * own)
        q, k, v = e.op("Split", q, e.ints([heads * width, own * width, own * width]), outputs=3, axis=2)
    q, k, v = split_heads(e, q, heads), split_heads(e, k, own), split_heads(e, v, own)
    offset = 0 if past_key is None else past_key.shape[2]
    if call.attribute("do_rotary", 0) and cos is not None and sin is not None:
        length = q.shape[2]
        ids = e.reshape(e.ints(range(offset, offset + length)), (1, length)) if positions is None else positions
        cos, sin = (e.op("Gather", c, ids) for c in (cos, sin))
        cos, sin = (e.reshape(c, (c.shape[0], 1, *c.shape[1:])) for c in (cos, sin))
        interleaved = bool(call.attribute("rotary_interleaved", 0))
        q, k = rotated(e, q, cos, sin, interleaved), rotated(e, k, cos, sin, interleaved)
    if offset and past_key is not None and past_value is not None:
        k, v = e.op("Concat", past_key, k, axis=2), e.op("Concat", past_value, v, axis=2)
    window = int(call.attribute("local_window_size", -1))
    mask = Mask(added, lowest=None if window < 0 else offset - window + 1, highest=offset)
    y, _ = attend(e, q, k, v, mask, float(call.attribute("scale", 0)), float(call.attribute("softcap", 0)))
    return merge_heads(e, y), k, v


def _grouped_types(call: Call, types: tuple[TensorType | None, ...]) -> tuple[TensorType | None, ...]:
    """Caches as declared: they may be buffers of a fixed length that does not follow from the inputs."""
    return (types[0], *[given or own for given, own in zip(call.outputs[1:], types[1:], strict=True)])


def _check_grouped(call: Call, *arrays: np.ndarray | None) -> None:
    query, past, valid = arrays[0], arrays[3], arrays[5]
    assert query is not None and valid is not None
    keys = query.shape[1] + (0 if past is None else past.shape[2])
    if (valid + 1 != keys).any():
        raise CannotExecute(f"{call.op} runs on full caches only: seqlens_k is {valid.tolist()} for {keys} keys")


composite("com.microsoft::MultiHeadAttention", _multi_head, recompute=HEAVY)
composite("com.microsoft::Attention", _projected, recompute=HEAVY)
composite("com.microsoft::GroupQueryAttention", _grouped, recompute=HEAVY, types=_grouped_types, check=_check_grouped)
