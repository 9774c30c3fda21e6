"""Attention of the standard: fused where possible, in plain products where the scores are capped or an output.

    s = scale · q kᵀ      capped: c · tanh(s / c)      + bias, -inf where hidden      y = softmax(s) v

A row whose keys are all hidden gives zeros. Heads of k and v are repeated to the number of heads of q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.nn.attention import visible
from graph.ops.numeric.by_body import composite
from graph.ops.numeric.precision import statistics_dtype
from graph.ops.registry.onnx_fallback import numpy_dtype
from graph.ops.registry.registry import HEAVY, Call

_FILL, _HIDDEN = -1e30, -5e29  # score of a hidden key; the log-sum-exp of a row of hidden keys lies below _HIDDEN


@dataclass(frozen=True, slots=True)
class Mask:
    """What is added to scores, and which keys a query sees: i + lowest <= j <= i + highest, where `keep` is true."""

    bias: Val | None = None
    keep: Val | None = None
    lowest: int | None = None
    highest: int | None = None


def both(e: Emit, a: Val | None, b: Val | None, op: str = "And") -> Val | None:
    """The two combined; the one that is present."""
    if a is None or b is None:
        return b if a is None else a
    return e.op(op, a, b)  # type: ignore[no-any-return]


def split_heads(e: Emit, x: Val, heads: int) -> Val:
    """[B, L, heads · d] as [B, heads, L, d]."""
    if heads < 1 or x.shape[2] % heads:
        raise ValueError(f"{x.type} cannot be split into {heads} heads")
    return e.transpose(e.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads)), [0, 2, 1, 3])


def merge_heads(e: Emit, x: Val) -> Val:
    """[B, heads, L, d] as [B, L, heads · d]."""
    batch, heads, length, width = x.shape
    return e.reshape(e.transpose(x, [0, 2, 1, 3]), (batch, length, heads * width))


def attend(
    e: Emit, q: Val, k: Val, v: Val, mask: Mask, scale: float = 0.0, softcap: float = 0.0, shown: int | None = None
) -> tuple[Val, Val | None]:
    """(output, scores at stage `shown`) for q [B, H, L, d], k [B, h, S, d] and v [B, h, S, e].

    Scale 0 is 1 / √d. Stages: 0 products, 1 capped, 2 masked, 3 probabilities.
    """
    scale = scale or 1 / math.sqrt(q.shape[-1])
    kt, v = e.transpose(_repeated(e, k, q.shape[1]), [0, 1, 3, 2]), _repeated(e, v, q.shape[1])
    bias, keep = mask.bias, mask.keep
    if bias is not None:
        known = e.known(bias)
        if known is None or np.isneginf(known).any():  # such an entry hides its key
            wide = e.cast(bias, statistics_dtype(bias.dtype))
            keep = both(e, keep, e.op("Not", e.op("IsInf", wide, detect_positive=0)))
        bias = e.cast(bias, q.dtype)
    if softcap or shown is not None:
        return _plain(e, q, kt, v, Mask(bias, keep, mask.lowest, mask.highest), scale, softcap, shown)
    is_open = keep is None and mask.lowest is None and (mask.highest is None or mask.highest >= 0)
    y, lse = e.op(
        "remat::FusedAttention",
        *(q, kt, v, bias, keep),
        outputs=(True, not is_open),
        scale=scale,
        fill=None if is_open else _FILL,
        lowest=mask.lowest,
        highest=mask.highest,
    )
    return y if is_open else _without_hidden_rows(e, y, e.reshape(lse, (*lse.shape, 1))), None


def _without_hidden_rows(e: Emit, x: Val, top: Val) -> Val:
    """`x`, zero in the rows whose scores are all hidden."""
    return e.where(e.op("Greater", top, e.scalar_like(_HIDDEN, top)), x, e.scalar_like(0, x))


def _plain(
    e: Emit, q: Val, kt: Val, v: Val, mask: Mask, scale: float, softcap: float, shown: int | None
) -> tuple[Val, Val | None]:
    dtype = statistics_dtype(q.dtype)
    products = e.matmul(e.cast(q, dtype), e.cast(kt, dtype))
    scores = e.mul(products, e.scalar_like(scale, products))
    capped = scores
    if softcap:
        cap = e.scalar_like(softcap, scores)
        capped = e.mul(e.op("Tanh", e.div(scores, cap)), cap)
    masked = capped if mask.bias is None else e.add(capped, e.cast(mask.bias, dtype))
    keep = visible(e, scores.shape, mask.keep, mask.lowest, mask.highest)
    filled = masked if keep is None else e.where(keep, masked, e.scalar_like(_FILL, masked))
    p = e.op("Softmax", filled, axis=-1)
    p = p if keep is None else _without_hidden_rows(e, p, e.op("ReduceMax", filled, e.ints([-1]), keepdims=1))
    stages = {0: scores, 1: capped, 2: masked, 3: p}
    if shown == 2 and keep is not None:
        stages[2] = e.where(keep, masked, e.scalar_like(-np.inf, masked))
    y = e.cast(e.matmul(p, e.cast(v, dtype)), q.dtype)
    return y, None if shown is None else e.cast(stages[shown], q.dtype)


def _repeated(e: Emit, x: Val, heads: int) -> Val:
    """[B, h, S, d] with each head repeated to `heads` in total."""
    batch, own, length, width = x.shape
    if own == heads:
        return x
    if heads % own:
        raise ValueError(f"{heads} heads of queries for {own} heads of keys and values")
    groups = (batch, own, heads // own, length, width)
    return e.reshape(e.expand(e.reshape(x, (batch, own, 1, length, width)), groups), (batch, heads, length, width))


def _attention(
    e: Emit,
    call: Call,
    q: Val,
    k: Val,
    v: Val,
    given: Val | None = None,
    past_key: Val | None = None,
    past_value: Val | None = None,
    lengths: Val | None = None,
) -> tuple[Val | None, ...]:
    is_flat = q.rank == 3
    if is_flat:
        heads = int(call.attribute("q_num_heads", 0)), int(call.attribute("kv_num_heads", 0))
        q, k, v = split_heads(e, q, heads[0]), split_heads(e, k, heads[1]), split_heads(e, v, heads[1])
    if past_key is not None and past_value is not None:
        k, v = e.op("Concat", past_key, k, axis=2), e.op("Concat", past_value, v, axis=2)
    offset = 0 if past_key is None else past_key.shape[2]
    y, scores = attend(
        e,
        *(q, k, v, _mask(e, call, (q.shape[2], k.shape[2]), given, offset, lengths)),
        scale=float(call.attribute("scale", 0)),
        softcap=float(call.attribute("softcap", 0)),
        shown=int(call.attribute("qk_matmul_output_mode", 0)) if call.used[3:4] == (True,) else None,
    )
    present = [x if wanted else None for x, wanted in zip((k, v), call.used[1:3], strict=False)]
    return (merge_heads(e, y) if is_flat else y, *present, *[None] * (2 - len(present)), scores)


def _mask(e: Emit, call: Call, scores: tuple[int, int], given: Val | None, offset: int, lengths: Val | None) -> Mask:
    """The mask of a node; query i is at position i + offset, or with `lengths` of valid keys at the end of these."""
    left, right = int(call.attribute("left_window_size", -1)), int(call.attribute("right_window_size", -1))
    if call.attribute("is_causal", 0):
        right = 0
    lowest, highest = None if left < 0 else offset - left, None if right < 0 else offset + right
    if given is not None and given.shape[-1] < scores[1]:
        beyond = np.full((1,) * given.rank, False if given.dtype == "bool" else -np.inf).astype(
            numpy_dtype(given.dtype)
        )
        missing = (*given.shape[:-1], scores[1] - given.shape[-1])
        given = e.op("Concat", given, e.expand(e.constant(beyond), missing), axis=-1)
    bias, keep = (None, given) if given is not None and given.dtype == "bool" else (given, None)
    if lengths is None:
        return Mask(bias, keep, lowest, highest)
    lengths = e.reshape(lengths, (*lengths.shape[:1], 1, 1, 1))
    keys = e.ints(range(scores[1]))
    keep = both(e, keep, e.op("Less", keys, lengths))
    at = e.add(e.sub(lengths, e.ints([scores[0]])), e.constant(np.arange(scores[0])[:, None]))
    for bound, comparison in ((lowest, "GreaterOrEqual"), (highest, "LessOrEqual")):
        if bound is not None:
            keep = both(e, keep, e.op(comparison, keys, e.add(at, e.ints([bound]))))
    return Mask(bias, keep)


composite("Attention", _attention, recompute=HEAVY)
