"""Protobuf messages of Caffe2: NetDef and its parts (caffe2.proto)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from graph.formats.shared.protobuf import LENGTH, VARINT, fields_of, is_text, messages, parse_message, parse_text

_TABLE = {
    "TensorProto": "dims 1 * int64, data_type 2 int32, byte_data 5 bytes, name 7 string, raw_data 13 bytes",
    "DeviceOption": "device_type 1 int32, device_id 2 int32, random_seed 3 uint32, node_name 4 string, "
    "numa_node_id 5 int32, extra_info 6 * string",
    "Argument": "name 1 string, f 2 float, i 3 int64, s 4 bytes, floats 5 * float, ints 6 * int64, strings 7 * bytes, "
    "n 8 NetDef, nets 9 * NetDef, t 10 TensorProto, tensors 11 * TensorProto",
    "OperatorDef": "input 1 * string, output 2 * string, name 3 string, type 4 string, arg 5 * Argument, "
    "device_option 6 DeviceOption, engine 7 string, control_input 8 * string, is_gradient_op 9 bool, "
    "debug_info 10 string, domain 11 string, op_version 12 int64",
    "NetDef": "name 1 string, op 2 * OperatorDef, type 3 string, num_workers 4 int32, device_option 5 DeviceOption, "
    "arg 6 * Argument, external_input 7 * string, external_output 8 * string",
}
#: Fields of the text form of a NetDef.
_NET_FIELDS = "name|op|type|num_workers|device_option|arg|external_input|external_output"
#: Wire types of the fields of a NetDef and of an OperatorDef.
_NET = {**dict.fromkeys(range(1, 10), LENGTH), 4: VARINT}
_OP = {**dict.fromkeys(range(1, 12), LENGTH), 9: VARINT, 12: VARINT}


@functools.cache
def caffe2() -> dict[str, Callable[..., Any]]:
    """Message classes by name."""
    return messages("remat.caffe2", _TABLE)


def sniff(data: bytes) -> bool:
    """True for bytes or text that begin as a NetDef: fields of its wire types, and a first op with a type."""
    if is_text(data, _NET_FIELDS):
        return bool(re.search(rb"\b(op|external_input)\s*[:{<]", data[: 1 << 16]))
    for number, kind, start, end in fields_of(data):
        if _NET.get(number) != kind:
            return False
        if number == 2:
            inside = list(fields_of(data, start, end))
            return all(_OP.get(n) == k for n, k, _, _ in inside) and (
                end > len(data) or any(n == 4 for n, *_ in inside)
            )
    return False


def net_of(data: bytes) -> Any:
    """The NetDef in binary or text form. Raises BadGraph."""
    kind = caffe2()["NetDef"]
    if is_text(data, _NET_FIELDS):
        return parse_text(kind, data.replace(b"cuda_gpu_id:", b"device_id:"), "NetDef")
    return parse_message(kind, data, "NetDef")


def value_of(argument: Any) -> Any:
    """Value of an argument as plain data; nested nets stay messages."""
    for field in ("floats", "ints", "strings", "nets", "tensors"):
        items = getattr(argument, field)
        if len(items):
            return [_plain(item) for item in items]
    for field in ("f", "i", "s", "n", "t"):
        if argument.HasField(field):
            return _plain(getattr(argument, field))
    return []


def _plain(item: Any) -> Any:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


def device_of_op(op: Any) -> str:
    """Device of an op, such as "gpu:1"; "" when unspecified."""
    if not op.HasField("device_option"):
        return ""
    option = op.device_option
    return "cpu" if option.device_type == 0 else f"gpu:{option.device_id}"
