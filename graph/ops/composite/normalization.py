"""Normalization fused with a residual sum or with the lookup of embeddings, as onnxruntime's optimiser writes it."""

from __future__ import annotations

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.numeric.by_body import composite
from graph.ops.numeric.precision import statistics_dtype
from graph.ops.registry.registry import Call


def _root_mean_square(e: Emit, x: Val, scale: Val, axis: int, epsilon: float) -> tuple[Val, Val]:
    """(x / rms · scale, 1 / rms) over the axes from `axis`."""
    wide = e.cast(x, statistics_dtype(x.dtype))
    mean = e.reduce_mean(e.mul(wide, wide), range(axis % x.rank, x.rank))
    inverse = e.op("Reciprocal", e.op("Sqrt", e.add(mean, e.scalar_like(epsilon, mean))))
    return e.mul(e.cast(e.mul(wide, inverse), scale.dtype), scale), inverse


def _simplified(e: Emit, call: Call, x: Val, scale: Val) -> tuple[Val | None, ...]:
    epsilon = float(call.attribute("epsilon", 1e-5))
    return _root_mean_square(e, x, scale, int(call.attribute("axis", -1)), epsilon)


def _skip_simplified(
    e: Emit, call: Call, x: Val, skip: Val, scale: Val, bias: Val | None = None
) -> tuple[Val | None, ...]:
    total = _summed(e, x, skip, bias)
    y, inverse = _root_mean_square(e, total, scale, -1, _epsilon(call))
    return y, None, inverse, total


def _skip_layer(
    e: Emit, call: Call, x: Val, skip: Val, scale: Val, shift: Val | None = None, bias: Val | None = None
) -> tuple[Val | None, ...]:
    total = _summed(e, x, skip, bias)
    return (*_layer(e, call, total, scale, shift), total)


def _summed(e: Emit, x: Val, skip: Val, bias: Val | None) -> Val:
    total = e.add(x, skip)
    return total if bias is None else e.add(total, bias)


def _layer(e: Emit, call: Call, x: Val, scale: Val, shift: Val | None) -> tuple[Val | None, ...]:
    """(normalized, mean, 1 / deviation), the last two where they are outputs."""
    used = (True, *call.used[1:3], False, False)[:3]
    last = max(i for i, wanted in enumerate(used) if wanted)
    operands = [v for v in (x, scale, shift) if v is not None]
    found = e.op("LayerNormalization", *operands, outputs=used[: last + 1], axis=-1, epsilon=_epsilon(call))
    return (*found, None, None)[:3]


def _embedded(
    e: Emit,
    call: Call,
    ids: Val,
    segments: Val | None,
    words: Val,
    places: Val,
    kinds: Val | None,
    scale: Val,
    shift: Val,
    mask: Val | None = None,
    positions: Val | None = None,
) -> tuple[Val | None, ...]:
    if positions is None:
        positions = e.reshape(e.ints(range(ids.shape[1])), (1, ids.shape[1]))
    total = e.add(e.op("Gather", words, ids), e.op("Gather", places, positions))
    if segments is not None and kinds is not None:
        total = e.add(total, e.op("Gather", kinds, segments))
    counts = e.constant([0] * ids.shape[0], "int32")
    if mask is not None:
        counts = e.reduce_sum(e.cast(mask, "int32"), [1], keepdims=False)
    return e.op("LayerNormalization", total, scale, shift, axis=-1, epsilon=_epsilon(call)), counts, total


def _epsilon(call: Call) -> float:
    return float(call.attribute("epsilon", 1e-12))


composite("SimplifiedLayerNormalization", _simplified)
composite("com.microsoft::SkipLayerNormalization", _skip_layer)
composite("com.microsoft::SkipSimplifiedLayerNormalization", _skip_simplified)
composite("com.microsoft::EmbedLayerNormalization", _embedded)
