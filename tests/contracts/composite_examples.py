"""Example uses of the ops that are defined by their decomposition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.contracts.gradient_examples import Example, ints, real

MICROSOFT = "com.microsoft::"
PLANES = (True, False, False, True)


def _standard() -> list[Example]:
    q, k, v = real(2, 4, 3, 4), real(2, 2, 5, 4), real(2, 2, 5, 6)
    flags = np.array([[True, False, True, True, True], [False] * 5, [False, True, False, True, True]])
    grouped = {"q_num_heads": 4, "kv_num_heads": 2}
    hidden = np.where(flags, 0.5, -np.inf)
    past = real(2, 2, 2, 4), real(2, 2, 2, 6)
    table, place = real(9, 2), np.array([[0, 1, 8], [4, 2, 3]])
    x = real(2, 4, 3, 6)
    attentions: list[tuple[tuple[np.ndarray | None, ...], Mapping[str, Any], tuple[bool, ...]]] = [
        ((q, k, v), {"is_causal": 1}, (True,)),
        ((q, k, v, flags), {"scale": 0.7, "softmax_precision": 1}, (True,)),
        ((q, k, v, real(2, 1, 3, 5)), {"is_causal": 1}, (True,)),
        ((q, k, v, flags, *past), {"is_causal": 1}, (True, True, True)),
        ((q, k, v, None, None, None, ints(4, 2)), {"is_causal": 1}, (True,)),
        ((q, k, v, real(3, 5)), {"softcap": 0.5, "qk_matmul_output_mode": 1}, PLANES),
        ((q, k, v), {"left_window_size": 1, "right_window_size": 1, "qk_matmul_output_mode": 3}, PLANES),
        ((real(2, 3, 16), real(2, 5, 8), real(2, 5, 12), real(3, 4)), grouped, (True,)),
    ]
    found = [Example("Attention", a, b, c, opset=25) for a, b, c in attentions]
    found.append(Example("Attention", (q, k, v, hidden), {}, (True,), fixed=(3,), opset=25))
    found += [
        Example("RotaryEmbedding", inputs, attributes, opset=23)
        for inputs, attributes in (
            ((x, real(9, 3), real(9, 3), place), {}),
            ((x, real(9, 3), real(9, 3), place), {"interleaved": 1}),
            ((x, table, table, place), {"rotary_embedding_dim": 4}),
            ((real(2, 3, 24), real(2, 3, 2), real(2, 3, 2)), {"num_heads": 4, "rotary_embedding_dim": 4}),
        )
    ]
    single = {"dtype": "float32", "tolerance": 1e-3}
    found += [Example("SwiGLU", (real(3, 4), real(3, 4)), a, opset=28) for a in ({}, {"alpha": 1.5})]
    found += [
        Example("CausalConvWithState", inputs, attributes, (True, True), opset=27, **single)  # type: ignore[arg-type]
        for inputs, attributes in (
            ((real(2, 3, 4), real(3, 1, 3), real(3), real(2, 3, 2)), {"activation": "silu"}),
            ((real(2, 3, 4), real(3, 1, 2)), {}),
        )
    ]
    found.append(Example("SimplifiedLayerNormalization", (real(2, 3, 4), real(4)), {"epsilon": 0.1, "axis": -1}))
    return found


def _microsoft() -> list[Example]:
    found: list[Example] = []

    def use(op: str, *inputs: np.ndarray | None, outputs: tuple[bool, ...] = (True,), **attributes: Any) -> None:
        found.append(Example(MICROSOFT + op, inputs, attributes, outputs))

    use("Gelu", real(3, 4))
    use("QuickGelu", real(3, 4), alpha=1.5)
    use("BiasGelu", real(2, 3, 4), real(4))
    use("FastGelu", real(2, 3, 4), real(4))
    use("FastGelu", real(2, 3, 4))
    use("FusedMatMul", real(2, 4, 3), real(2, 5, 4), transA=1, transB=1, alpha=0.5)
    use("FusedMatMul", real(3, 2, 4), real(2, 4, 5), transBatchA=1)
    use("FusedConv", real(2, 3, 5, 5), real(4, 3, 3, 3), real(4), activation="Relu", pads=[1, 1, 1, 1])
    use("FusedConv", real(2, 3, 5, 5), real(4, 3, 3, 3), activation="LeakyRelu", activation_params=[0.2])
    use("SkipLayerNormalization", real(2, 3, 8), real(2, 3, 8), real(8), real(8), real(8), outputs=PLANES, epsilon=0.1)
    use("SkipLayerNormalization", real(2, 3, 8), real(2, 3, 8), real(8))
    use("SkipSimplifiedLayerNormalization", real(2, 3, 8), real(2, 3, 8), real(8), outputs=PLANES, epsilon=0.1)
    use("SkipSimplifiedLayerNormalization", real(2, 3, 8), real(2, 3, 8), real(8), real(8))
    ids, kinds = np.int32([[1, 2, 0], [3, 3, 1]]), np.int32([[0, 1, 0], [1, 1, 0]])
    embeddings = real(5, 8), real(4, 8), real(2, 8), real(8), real(8)
    use("EmbedLayerNormalization", ids, kinds, *embeddings, np.int32([[1, 1, 0], [1, 1, 1]]), outputs=(True,) * 3)
    tables = real(9, 3), real(9, 3)
    use("RotaryEmbedding", real(2, 4, 3, 6), np.array([[0, 1, 8], [4, 2, 3]]), *tables, interleaved=1)
    use("RotaryEmbedding", real(2, 3, 24), ints(2), *tables)
    q, k, v = real(2, 3, 16), real(2, 5, 16), real(2, 5, 24)
    use("MultiHeadAttention", q, k, v, num_heads=4)
    use("MultiHeadAttention", q, k, v, real(56), np.int32([5, 2]), real(1, 4, 3, 5), num_heads=4, scale=0.4)
    flags = np.int32([[1, 1, 0, 1, 1], [1] * 5])
    use("MultiHeadAttention", q, k, v, None, flags, num_heads=4, mask_filter_value=-1e9)
    use("MultiHeadAttention", real(2, 3, 2, 3, 4), num_heads=2, unidirectional=1)
    weights = real(6, 48), real(48)
    use("Attention", real(2, 3, 6), *weights, num_heads=4, unidirectional=1)
    use("Attention", real(2, 3, 6), *weights, np.int32([[1, 1, 0], [1, 0, 1]]), num_heads=4)
    use("Attention", real(2, 3, 6), *weights, None, real(2, 2, 4, 2, 4), num_heads=4, outputs=(True, True))
    heads = {"num_heads": 4, "kv_num_heads": 2}
    new, full = (real(2, 3, 64), real(2, 3, 32), real(2, 3, 32)), (np.int32([2, 2]), np.array(3, np.int32))
    use("GroupQueryAttention", *new, None, None, *full, outputs=(True,) * 3, **heads)
    wide = real(9, 8), real(9, 8)
    use("GroupQueryAttention", *new, None, None, *full, *wide, outputs=(True,) * 3, do_rotary=1, **heads)
    use("GroupQueryAttention", real(2, 3, 128), None, None, None, None, *full, outputs=(True,) * 3, **heads)
    use("GroupQueryAttention", *new, None, None, *full, outputs=(True,) * 3, local_window_size=2, **heads)
    old = real(2, 2, 4, 16), real(2, 2, 4, 16)
    step = real(2, 1, 64), real(2, 1, 32), real(2, 1, 32), *old, np.int32([4, 4]), np.array(5, np.int32)
    use("GroupQueryAttention", *step, outputs=(True,) * 3, **heads)
    return found


COMPOSITES: list[Example] = [*_standard(), *_microsoft()]
