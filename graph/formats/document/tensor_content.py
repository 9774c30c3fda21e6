"""Encoding of tensors and attributes in a document: base64 of little endian, row-major elements.

{"dtype": "int64", "shape": [2], "data": "AQAAAAAAAAACAAAAAAAAAA=="}     a tensor as an attribute
{"float": "-inf"}      a non-finite float               {"bytes": "AAE="}     raw bytes
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from graph.errors import Findings
from graph.formats.document.faults import describe_data
from graph.ir import DTYPE_BITS, EMPTY, TensorType
from graph.limits import Limits
from graph.ops.registry.onnx_fallback import dtype_name, numpy_dtype

_TENSOR = {"dtype", "shape", "data"}
_PLAIN = frozenset({str, int, bool})  # types with a direct JSON form
_LARGEST_INTEGER, _SMALLEST_INTEGER = 2**63 - 1, -(2**63)


def decode_array(data: str, type: TensorType) -> np.ndarray:
    """Array decoded from base64 text; sub-byte elements are packed, low bits first. Raises ValueError."""
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"text that is not base64 ({error})") from None
    if len(raw) != type.nbytes:
        raise ValueError(f"{len(raw):,} bytes for {type}, which has {type.nbytes:,}")
    dtype, bits = numpy_dtype(type.dtype), DTYPE_BITS[type.dtype]
    if bits >= 8:
        if type.dtype == "bool" and raw.strip(b"\x00\x01"):
            raise ValueError("a bool that is neither 0 nor 1")
        return np.frombuffer(raw, dtype).reshape(type.shape)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed = np.frombuffer(raw, np.uint8)[:, None]
    elements = ((packed >> shifts) & ((1 << bits) - 1)).astype(np.uint8).reshape(-1)[: type.elements]
    if type.dtype.startswith("int"):
        sign = 1 << (bits - 1)
        array = ((elements ^ sign).astype(np.int8) - np.int8(sign)).astype(dtype)
    else:
        array = elements.view(dtype) if type.dtype.startswith("float") else elements.astype(dtype)
    array.flags.writeable = False
    return array.reshape(type.shape)


def encode_array(array: np.ndarray) -> str:
    """Base64 text of an array: the inverse of `decode_array`."""
    array = np.ascontiguousarray(array)
    bits = DTYPE_BITS[dtype_name(array.dtype)]
    if bits >= 8:
        return base64.b64encode(array.tobytes()).decode()
    per_byte = 8 // bits
    elements = array.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    elements = np.concatenate([elements, np.zeros(-len(elements) % per_byte, np.uint8)]).reshape(-1, per_byte)
    packed = np.bitwise_or.reduce(elements << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
    return base64.b64encode(packed.astype(np.uint8).tobytes()).decode()


def read_attributes(raw: Mapping[str, Any], path: str, limits: Limits, findings: Findings) -> Mapping[str, Any]:
    """Attributes decoded for the op table (tensors as arrays, bytes as bytes); faults are added to `findings`."""
    decoded = {}
    for key, value in raw.items():
        kind = type(value)
        if kind is str or kind is float or kind is bool:
            decoded[key] = value
        else:
            decoded[key] = _read(value, f"{path}.{key}", limits.depth, findings)
    return decoded or EMPTY


def write_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes encoded for a document."""
    return {key: value if type(value) in _PLAIN else _write(value) for key, value in attributes.items()}


def check_attributes(opaque: Mapping[str, Any], path: str, limits: Limits, findings: Findings) -> None:
    """Add a finding for data a document cannot hold: excessive nesting, integers past 64 bits, raw bytes."""
    for key, value in opaque.items():
        if type(value) is not str:
            _read(value, f"{path}.{key}", limits.depth, findings)


def check_attribute_sizes(opaque: Mapping[str, Any], path: str, limits: Limits, findings: Findings) -> None:
    """Add a finding for each attribute or annotation above `limits.attribute_bytes`."""
    for key, value in opaque.items():
        if _is_surely_small(value, limits.attribute_bytes):
            continue
        size = len(msgspec.json.encode(value, enc_hook=str))
        if size > limits.attribute_bytes:
            findings.add(
                "too_large",
                f"{path}.{key}",
                f"{size:,} bytes",
                f"at most {limits.attribute_bytes}",
                "move large data into a constant, or raise the limit",
            )


def _is_surely_small(value: Any, limit_bytes: int) -> bool:
    """True when an upper bound of the encoded size is within the limit; avoids encoding most values."""
    if isinstance(value, str):
        return 6 * len(value) + 2 <= limit_bytes  # \uXXXX per character
    if isinstance(value, list):
        return 32 * len(value) + 2 <= limit_bytes and set(map(type, value)) <= {int, float}
    return isinstance(value, int | float) and limit_bytes >= 32


def _read(value: Any, path: str, depth: int, findings: Findings) -> Any:
    if depth == 0:
        findings.add("too_deep", path, "nested lists and objects", "fewer levels", "flatten the nested data")
    elif isinstance(value, list):
        kinds = set(map(type, value))
        integers = kinds == {int} and min(value) >= _SMALLEST_INTEGER and max(value) <= _LARGEST_INTEGER
        if not integers and not kinds <= {float, str}:
            return [_read(item, f"{path}[{i}]", depth - 1, findings) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        return _read_object(value, path, depth, findings)
    elif isinstance(value, bool | str | float) or value is None:
        pass
    elif not isinstance(value, int):
        findings.add(
            "wrong_type",
            path,
            describe_data(value) if isinstance(value, bytes) else "an extension of msgpack",
            "a number, a string, true, false, null, a list or an object",
            'write raw bytes as {"bytes": "BASE64"}',
        )
    elif not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
        findings.add("number_too_large", path, describe_data(value), "an integer of 64 bits", "write it as a string")
    return value


def _read_object(value: dict[str, Any], path: str, depth: int, findings: Findings) -> Any:
    try:
        if value.keys() == _TENSOR:
            return _tensor(value)
        if value.keys() == {"float"} and value["float"] in ("nan", "inf", "-inf"):
            return float(value["float"])
        if value.keys() == {"bytes"} and isinstance(value["bytes"], str):
            return base64.b64decode(value["bytes"], validate=True)
    except ValueError as error:
        findings.add("bad_content", path, str(error), "base64 of little endian elements", "re-encode the content")
        return value
    return {key: _read(item, f"{path}.{key}", depth - 1, findings) for key, item in value.items()}


def _tensor(value: dict[str, Any]) -> np.ndarray:
    dtype, shape, data = value["dtype"], value["shape"], value["data"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"dtype {describe_data(dtype)}")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"shape {describe_data(shape)}")
    if not isinstance(data, str):
        raise ValueError(f"data {describe_data(data)}")
    return decode_array(data, TensorType(dtype, tuple(shape)))


def _write(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list and _PLAIN.issuperset(map(type, value)):
        return value.copy()
    if isinstance(value, np.ndarray):
        return {"dtype": dtype_name(value.dtype), "shape": list(value.shape), "data": encode_array(value)}
    if isinstance(value, np.generic):
        return _write(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [_write(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _write(item) for key, item in value.items()}
    return value
