"""Conversion of element types between ONNX, numpy and `TensorProto` names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from graph.ir import DTYPE_BITS, TensorType

_NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
} | {
    name: np.dtype(getattr(ml_dtypes, other))
    for name, other in {
        "bfloat16": "bfloat16",
        "float8e4m3fn": "float8_e4m3fn",
        "float8e4m3fnuz": "float8_e4m3fnuz",
        "float8e5m2": "float8_e5m2",
        "float8e5m2fnuz": "float8_e5m2fnuz",
        "float8e8m0": "float8_e8m0fnu",
        "int4": "int4",
        "uint4": "uint4",
        "float4e2m1": "float4_e2m1fn",
        "int2": "int2",
        "uint2": "uint2",
    }.items()
}
_NAME_OF_NUMPY = {dtype: name for name, dtype in _NUMPY.items()}
_ONNX = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE} | {
    name: int(TensorProto.DataType.Value(name.upper())) for name in DTYPE_BITS if name not in ("float32", "float64")
}
_NAME_OF_ONNX = {number: name for name, number in _ONNX.items()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) dtype of an ONNX name such as "bfloat16". Raises ValueError."""
    try:
        return _NUMPY[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is not known; use one of {', '.join(DTYPE_BITS)}") from None


def onnx_dtype(name: str) -> int:
    """The number of an ONNX name in `TensorProto.DataType`. Raises ValueError."""
    try:
        return _ONNX[name]
    except KeyError:
        raise ValueError(f"dtype {name!r} is not known; use one of {', '.join(DTYPE_BITS)}") from None


def dtype_name(dtype: int | np.dtype[Any] | type) -> str:
    """The ONNX name of a `TensorProto.DataType` number or of a numpy dtype. Raises ValueError."""
    found = _NAME_OF_ONNX.get(dtype) if isinstance(dtype, int) else _NAME_OF_NUMPY.get(np.dtype(dtype))
    if found is None:
        shown = TensorProto.DataType.Name(dtype) if dtype in TensorProto.DataType.values() else dtype
        raise ValueError(f"element type {shown} is not supported; use one of {', '.join(DTYPE_BITS)}")
    return found


def type_of_array(array: np.ndarray) -> TensorType:
    """TensorType of a numpy array."""
    return TensorType(dtype_name(array.dtype), tuple(array.shape))
