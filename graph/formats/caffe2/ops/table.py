"""The op table of Caffe2, and its element types."""

from __future__ import annotations

from graph.formats.shared.op_table import OpTable, Unmapped

CAFFE2 = OpTable(
    "caffe2",
    "is_test order=NCHW use_cudnn cudnn_exhaustive_search exhaustive_search ws_nbytes_limit shared_buffer "
    "enable_tensor_core float16_compute deterministic force_algo_fwd force_algo_dgrad force_algo_wgrad",
)

#: TensorProto.DataType of Caffe2.
DTYPES = {
    1: "float32",
    2: "int32",
    3: "uint8",
    5: "bool",
    6: "uint8",
    7: "int8",
    8: "uint16",
    9: "int16",
    10: "int64",
    12: "float16",
    13: "float64",
}


def dtype_of(number: int) -> str:
    """Element type by Caffe2's number. Raises Unmapped for strings and other non-numeric types."""
    if number not in DTYPES:
        raise Unmapped
    return DTYPES[number]
