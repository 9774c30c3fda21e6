"""The op table of MXNet, and its element types."""

from __future__ import annotations

from graph.formats.shared.op_table import OpTable, OpUse
from graph.ir import DTYPE_BITS

MXNET = OpTable(
    "mxnet",
    "ctx ctx_group lr_mult wd_mult weight_lr_mult weight_wd_mult bias_lr_mult bias_wd_mult cudnn_off cudnn_tune",
)

#: Element types by MXNet's type flag, which files may use instead of names.
DTYPES = {
    0: "float32",
    1: "float64",
    2: "float16",
    3: "uint8",
    4: "int32",
    5: "int8",
    6: "int64",
    7: "bool",
    12: "bfloat16",
}
DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}


def dtype_of(word: str) -> str:
    """An element type by name or number. Raises ValueError."""
    name = DTYPES.get(int(word), word) if word.lstrip("-").isdigit() else word
    if name not in DTYPE_BITS:
        raise ValueError(f"element type {word!r}")
    return name


def dtype_attribute(use: OpUse) -> str:
    return dtype_of(use.text("dtype", default="float32"))
