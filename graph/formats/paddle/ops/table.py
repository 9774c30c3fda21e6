"""The op table of Paddle, and its element types."""

from __future__ import annotations

from typing import Any

from graph.formats.shared.op_table import OpTable, OpUse
from graph.ir import DTYPE_BITS

PADDLE = OpTable(
    "paddle",
    "op_role op_role_var op_namescope op_callstack op_creation_stack op_device op_struct_name struct_name name place "
    "stop_gradient persistable is_persistable is_persisable chunk_id comp_op_name force_cpu place_type "
    "with_quant_attr=0 use_mkldnn use_onednn mkldnn_data_type use_quantizer=0 use_cudnn is_test recompute_checkpoint",
)

#: VarType.Type numbers of element types.
DTYPES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
    22: "bfloat16",
    23: "complex64",
    24: "complex128",
    32: "float8e4m3fn",
    33: "float8e5m2",
}

DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}
#: Input and output slots in the order of the rules, and the ops that have them; `*` marks a slot with several names.
#: Other ops have the slots X and Out.
_SLOTS: dict[tuple[str, str], str] = {
    ("X Y", "Out"): (
        "mul matmul matmul_v2 bmm mv dot minus equal not_equal less_than less_equal greater_than greater_equal "
        "logical_and logical_or logical_xor Add Sub Mul Div Pow share_data expand_as_v2 square_error_cost swiglu"
    ),
    ("X*", "Out"): "sum concat add_n",
    ("X*", "Y"): "stack",
    ("X", "Out*"): "split",
    ("X", "Y*"): "unstack",
    ("X", "Out XShape"): "flatten2 flatten_contiguous_range squeeze2 transpose2 unsqueeze2",
    ("X", "Out Indices"): "top_k_v2",
    ("X Shape", "Out XShape"): "reshape2",
    ("X Shape", "Out"): "reshape expand_v2",
    ("X Index", "Out"): "gather gather_nd",
    ("X Alpha", "Out"): "prelu",
    ("X Label", "Out"): "sigmoid_cross_entropy_with_logits",
    ("X Label", "Y"): "cross_entropy",
    ("X Label", "Y XShape MatchX"): "cross_entropy2",
    ("Logits Label", "Loss Softmax"): "softmax_with_cross_entropy",
    ("X Seed", "Out Mask"): "dropout",
    ("X Scale", "Y InvVar"): "rms_norm",
    ("X Scale Bias", "Y Mean Variance"): "group_norm layer_norm",
    ("X Scale Bias", "Y SavedMean SavedVariance"): "instance_norm",
    ("X Scale Bias Mean Variance", "Y MeanOut VarianceOut SavedMean SavedVariance"): "batch_norm sync_batch_norm",
    ("Input Filter Bias", "Output"): "conv2d depthwise_conv2d conv3d conv2d_transpose",
    ("Input W Bias", "Out"): "fc",
    ("Input", "Out"): "fill_constant_batch_size_like slice strided_slice",
    ("W Ids", "Out"): "lookup_table lookup_table_v2 embedding",
    ("Condition X Y", "Out"): "where",
    ("Start End Step", "Out"): "range",
    ("ShapeTensor", "Out"): "fill_constant",
    ("", "Out"): "seed",
}
SLOTS = {op: slots for slots, ops in _SLOTS.items() for op in ops.split()}


def slots_of(type: str) -> tuple[list[str], list[str]]:
    """(input slots, output slots) of an op type in the order its rule takes them."""
    inputs, outputs = SLOTS.get(type, ("X Y" if type.startswith("elementwise_") else "X", "Out"))
    return inputs.split(), outputs.split()


def dtype_of(word: Any) -> str:
    """An element type by Paddle's number or name. Raises ValueError."""
    if isinstance(word, str) and not word.lstrip("-").isdigit():
        name = word.removeprefix("paddle.").lower()
        if name not in DTYPE_BITS:
            raise ValueError(f"element type {word!r}")
        return name
    if int(word) not in DTYPES:
        raise ValueError(f"element type {word!r}")
    return DTYPES[int(word)]


def dtype_attribute(use: OpUse, default: str) -> str:
    """The attribute `dtype`; -1 and "undefined" stand for the default."""
    raw = use.raw(("dtype",))
    return default if raw in (None, -1, "-1", "undefined") else dtype_of(raw)
