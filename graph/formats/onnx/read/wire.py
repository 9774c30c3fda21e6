"""Bytes to a ModelProto: format detection by top-level fields, and errors for truncated or damaged files."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from graph.errors import BadGraph

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
#: Field number -> (name, wire type) of a ModelProto (onnx.proto).
_FIELDS = {
    1: ("ir_version", _VARINT),
    2: ("producer_name", _LENGTH),
    3: ("producer_version", _LENGTH),
    4: ("domain", _LENGTH),
    5: ("model_version", _VARINT),
    6: ("doc_string", _LENGTH),
    7: ("graph", _LENGTH),
    8: ("opset_import", _LENGTH),
    14: ("metadata_props", _LENGTH),
    20: ("training_info", _LENGTH),
    25: ("functions", _LENGTH),
    26: ("configuration", _LENGTH),
}
_MAX_IR_VERSION = 1000  # plausibility limit of the format detection


def sniff(data: bytes) -> bool:
    """True when the bytes begin as a ModelProto, possibly truncated; reads only top-level fields."""
    seen: set[str] = set()
    for name, value, _ in _fields(data):
        if not name or (name == "ir_version" and value > _MAX_IR_VERSION):
            return False
        seen.add(name)
        if "graph" in seen:
            break
    return "graph" in seen or {"ir_version", "opset_import"} <= seen or ("ir_version" in seen and len(seen) > 1)


def parse(data: bytes) -> ModelProto:
    """ModelProto in the bytes. Raises BadGraph; for a truncated file, with the field that is incomplete."""
    for name, length, left in _fields(data):
        if length > left:
            raise BadGraph.one(
                "truncated",
                name or "document",
                f"a file that ends {length - left:,} bytes before the end of {name}",
                f"{length:,} bytes there, {left:,} are left",
                "send the whole file",
            )
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise BadGraph.one(
            "not_a_model",
            "document",
            f"bytes that are not a ModelProto ({error})",
            "a ModelProto, nested at most 100 deep",
            "export the model again, or check that it was copied whole",
        ) from None
    if not model.HasField("graph"):
        raise BadGraph.one(
            "not_a_model",
            "graph",
            f"a ModelProto of {len(data):,} bytes without a graph",
            "a graph",
            "send the whole file",
        )
    return model


def _fields(data: bytes) -> Iterator[tuple[str, int, int]]:
    """(name, varint or length, bytes left after the header) per top-level field; name "" for an invalid field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        name, expected = _FIELDS.get(number, ("", wire))
        if key < 0 or wire != expected or (not name and wire not in (_VARINT, _FIXED64, _LENGTH, _FIXED32)):
            yield "", 0, 0
            return
        if wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
            yield name, 0, 0
            continue
        value, at = _varint(data, at)
        if value < 0:
            yield name, 1, 0  # ends inside a number
            return
        if wire == _VARINT:
            yield name, value if name == "ir_version" else 0, value if name == "ir_version" else 0
            continue
        yield name, value, len(data) - at
        at += value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, offset after it); (-1, end) for a varint that is truncated or longer than ten bytes."""
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    return -1, len(data)
