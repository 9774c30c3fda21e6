"""Ops of the PIR dialect converted to the older ops of the op table.

reshape(x, shape)   shape: result of full_int_array   reshape2(X), attribute shape
batch_norm_(x, mean, variance, scale, bias)           batch_norm(X, Scale, Bias, Mean, Variance)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Ops whose results are constants.
CONSTANTS = frozenset({"full", "full_int_array"})

_SAME: tuple[None, ...] = ()
#: op -> (older op, per operand the attribute that replaces it, None for one that stays an operand); other ops keep
#: their name and operands
_OPERANDS: dict[str, tuple[str, tuple[str | None, ...]]] = {
    "add": ("elementwise_add", _SAME),
    "subtract": ("elementwise_sub", _SAME),
    "multiply": ("elementwise_mul", _SAME),
    "divide": ("elementwise_div", _SAME),
    "maximum": ("elementwise_max", _SAME),
    "minimum": ("elementwise_min", _SAME),
    "matmul": ("matmul_v2", _SAME),
    "remainder": ("elementwise_mod", _SAME),
    "gaussian": ("gaussian_random", ("shape",)),
    "uniform": ("uniform_random", ("shape", "min", "max")),
    "reshape": ("reshape2", (None, "shape")),
    "transpose": ("transpose2", _SAME),
    "sum": ("reduce_sum", (None, "axis")),
    "max": ("reduce_max", (None, "axis")),
    "min": ("reduce_min", (None, "axis")),
    "prod": ("reduce_prod", (None, "axis")),
    "scale": ("scale", (None, "scale")),
    "concat": ("concat", (None, "axis")),
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
    "clip": ("clip", (None, "min", "max")),
    "hardswish": ("hard_swish", _SAME),
    "hardsigmoid": ("hard_sigmoid", _SAME),
    "dropout": ("dropout", (None, None, "p")),
}
#: Operands of the newer op in the order of the older one.
_ORDERS = {"batch_norm": (0, 3, 4, 1, 2), "sync_batch_norm": (0, 3, 4, 1, 2)}
#: Outputs in the order of the older op; the others are dropped.
_OUTPUTS = {"batch_norm": (0, 1, 2, 3, 4)}


def translated(
    op: str, operands: Sequence[int], attributes: Mapping[str, Any], constants: Mapping[int, Any]
) -> tuple[str, list[int], dict[str, Any], tuple[int, ...] | None]:
    """(older op, remaining operands, attributes including those from constants, order of outputs or None)."""
    plain = op if op in _OPERANDS else op.rstrip("_")  # in-place ops end in an underscore
    attributes = {key: value for key, value in attributes.items() if value is not None}
    if plain in _ORDERS:
        return plain, [operands[i] for i in _ORDERS[plain]], attributes, _OUTPUTS.get(plain)
    if plain == "full_int_array":
        value = attributes.get("value", [])
        return "assign_value", [], {"shape": [len(value)], "dtype": "int64", "values": value}, None
    type, names = _OPERANDS.get(plain, (plain, _SAME))
    remaining = []
    for k, operand in enumerate(operands):
        name = names[k] if k < len(names) else None
        if name is None:
            remaining.append(operand)
        elif operand in constants:
            attributes[name] = constants[operand]
        else:
            return f"{plain}", list(operands), attributes, None  # not constant: the op stays opaque
    return type, remaining, attributes, None
