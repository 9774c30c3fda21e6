"""Protobuf messages of Paddle: ProgramDesc and its parts (framework.proto)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from graph.formats.shared.protobuf import LENGTH, VARINT, fields_of, messages, parse_message

_TABLE = {
    "Version": "version 1 int64",
    "OpAttr": "name 1 string, type 2 int32, i 3 int32, f 4 float, s 5 string, ints 6 * int32, floats 7 * float, "
    "strings 8 * string, b 10 bool, bools 11 * bool, block_idx 12 int32, l 13 int64, blocks_idx 14 * int32, "
    "longs 15 * int64, float64s 16 * double, var_name 17 string, vars_name 18 * string, float64 19 double",
    "OpVar": "parameter 1 string, arguments 2 * string",
    "OpDesc": "inputs 1 * OpVar, outputs 2 * OpVar, type 3 string, attrs 4 * OpAttr, is_target 5 bool",
    "TensorDesc": "data_type 1 int32, dims 2 * int64",
    "LoDTensorDesc": "tensor 1 TensorDesc, lod_level 2 int32",
    "VarType": "type 1 int32, selected_rows 2 TensorDesc, lod_tensor 3 LoDTensorDesc, tensor_array 4 LoDTensorDesc",
    "VarAttr": "name 1 string, type 2 int32, i 3 int32, s 4 string, ints 5 * int32",
    "VarDesc": "name 1 string, type 2 VarType, persistable 3 bool, need_check_feed 4 bool, is_parameter 5 bool, "
    "stop_gradient 6 bool, attrs 7 * VarAttr",
    "BlockDesc": "idx 1 int32, parent_idx 2 int32, vars 3 * VarDesc, ops 4 * OpDesc, forward_block_idx 5 int32",
    "OpVersion": "version 1 int32",
    "OpVersionPair": "op_name 1 string, op_version 2 OpVersion",
    "OpVersionMap": "pair 1 * OpVersionPair",
    "ProgramDesc": "blocks 1 * BlockDesc, version 4 Version, op_version_map 5 OpVersionMap",
}
#: Wire types of the fields of a ProgramDesc and of a BlockDesc.
_PROGRAM = dict.fromkeys(range(1, 6), LENGTH)
_BLOCK = {1: VARINT, 2: VARINT, 3: LENGTH, 4: LENGTH, 5: VARINT}

#: AttrType number -> the field with the value.
FIELDS = {
    0: "i",
    1: "f",
    2: "s",
    3: "ints",
    4: "floats",
    5: "strings",
    6: "b",
    7: "bools",
    8: "block_idx",
    9: "l",
    10: "blocks_idx",
    11: "longs",
    12: "float64s",
    13: "var_name",
    14: "vars_name",
    15: "float64",
}
LOD_TENSOR = 7  # VarType.Type of a dense tensor


@functools.cache
def paddle() -> dict[str, Callable[..., Any]]:
    """Message classes by name."""
    return messages("remat.paddle", _TABLE)


def is_program(data: bytes) -> bool:
    """True when the bytes begin as a ProgramDesc, with a block that starts with its index."""
    for number, kind, start, end in fields_of(data):
        if _PROGRAM.get(number) != kind:
            return False
        if number == 1:
            inside = list(fields_of(data, start, end))
            return bool(inside) and inside[0][:2] == (1, VARINT) and all(_BLOCK.get(n) == k for n, k, _, _ in inside)
    return False


def program_of(data: bytes) -> Any:
    """The ProgramDesc in the bytes. Raises BadGraph."""
    return parse_message(paddle()["ProgramDesc"], data, "ProgramDesc")


def value_of(attribute: Any) -> Any:
    """Value of an op attribute as plain data; None for an unknown kind."""
    field = FIELDS.get(attribute.type)
    if field is None:
        return None
    found = getattr(attribute, field)
    return found if isinstance(found, str | int | float | bool) else list(found)
