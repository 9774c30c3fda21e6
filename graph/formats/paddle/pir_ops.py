"""Ops of the PIR dialect converted to the older ops of the op table.

reshape(x, shape)   shape made by full_int_array      reshape2(X), attribute shape
batch_norm_(x, mean, variance, scale, bias)           batch_norm(X, Scale, Bias, Mean, Variance)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Ops whose results are known when the program is read.
CONSTANTS = frozenset({"full", "full_int_array"})

#: op -> (older op, per operand its name where it is an attribute there, None where it stays an operand)
_SAME: tuple[None, ...] = ()
_OPERANDS: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "add": ("elementwise_add", _SAME),
    "subtract": ("elementwise_sub", _SAME),
    "multiply": ("elementwise_mul", _SAME),
    "divide": ("elementwise_div", _SAME),
    "elementwise_pow": ("elementwise_pow", _SAME),
    "maximum": ("elementwise_max", _SAME),
    "minimum": ("elementwise_min", _SAME),
    "matmul": ("matmul_v2", _SAME),
    "remainder": ("elementwise_mod", _SAME),
    "cross_entropy_with_softmax": ("cross_entropy_with_softmax", _SAME),
    "embedding": ("embedding", _SAME),
    "gaussian": ("gaussian_random", ("shape",)),
    "uniform": ("uniform_random", ("shape", "min", "max")),
    "reshape": ("reshape2", (None, "shape")),
    "transpose": ("transpose2", _SAME),
    "sum": ("reduce_sum", (None, "axis")),
    "mean": ("mean", _SAME),
    "max": ("reduce_max", (None, "axis")),
    "min": ("reduce_min", (None, "axis")),
    "prod": ("reduce_prod", (None, "axis")),
    "scale": ("scale", (None, "scale")),
    "concat": ("concat", (None, "axis")),
    "stack": ("stack", _SAME),
    "split_with_num": ("split", (None, "axis")),
    "split": ("split", (None, "sections", "axis")),
    "slice": ("slice", (None, "starts", "ends")),
    "strided_slice": ("strided_slice", (None, "starts", "ends", "strides")),
    "squeeze": ("squeeze2", (None, "axes")),
    "unsqueeze": ("unsqueeze2", (None, "axes")),
    "expand": ("expand_v2", (None, "shape")),
    "tile": ("tile", (None, "repeat_times")),
    "flatten": ("flatten_contiguous_range", _SAME),
    "gather": ("gather", (None, None, "axis")),
    "pool2d": ("pool2d", (None, "ksize")),
    "one_hot": ("one_hot_v2", (None, "depth")),
    "topk": ("top_k_v2", (None, "k")),
    "cumsum": ("cumsum", (None, "axis")),
    "argmax": ("argmax", (None, "axis")),
    "argmin": ("argmin", (None, "axis")),
    "full_like": ("full_like", (None, "value")),
    "add_n": ("add_n", _SAME),
    "clip": ("clip", (None, "min", "max")),
    "hardswish": ("hard_swish", _SAME),
    "hardsigmoid": ("hard_sigmoid", _SAME),
    "dropout": ("dropout", (None, None, "p")),
    "depthwise_conv2d": ("depthwise_conv2d", _SAME),
    "assign": ("assign", _SAME),
    "full": ("full", _SAME),
    "greater_than": ("greater_than", _SAME),
    "pow": ("pow", _SAME),
    "increment": ("increment", _SAME),
    "sigmoid_cross_entropy_with_logits": ("sigmoid_cross_entropy_with_logits", (None, None)),
}
#: Operands of the newer op in the order the older one takes them.
_ORDERS = {"batch_norm": (0, 3, 4, 1, 2), "sync_batch_norm": (0, 3, 4, 1, 2)}
#: Outputs in the older op's order; further ones are left out.
_OUTPUTS = {"batch_norm": (0, 1, 2, 3, 4)}


def translated(
    word: str, operands: Sequence[int], attributes: Mapping[str, Any], constants: Mapping[int, Any]
) -> tuple[str, list[int], dict[str, Any], tuple[int, ...] | None]:
    """(older op, operands that stay, attributes with what constants say, order of outputs or None)."""
    plain = word if word in _OPERANDS else word.rstrip("_")  # an op over its input has an underscore behind
    attributes = {key: value for key, value in attributes.items() if value is not None}
    if plain in _ORDERS:
        return plain, [operands[i] for i in _ORDERS[plain]], attributes, _OUTPUTS.get(plain)
    if plain == "full_int_array":
        value = attributes.get("value", [])
        return "assign_value", [], {"shape": [len(value)], "dtype": "int64", "values": value}, None
    type, names = _OPERANDS.get(plain, (plain, _SAME))
    left = []
    for k, operand in enumerate(operands):
        name = names[k] if k < len(names) else None
        if name is None:
            left.append(operand)
        elif operand in constants:
            attributes[name] = constants[operand]
        else:
            return f"{plain}", list(operands), attributes, None  # it is computed: the op stays opaque
    return type, left, attributes, None
