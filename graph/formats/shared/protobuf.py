"""Protocol buffer message classes built from a compact table; parsing and writing in binary and text form.

"NetDef": "name 1 string, op 2 * OperatorDef, type 3 string"      field, number, * for repeated, type

Field numbers and types are those of the frameworks' .proto files. String fields must be UTF-8; proto2, the syntax of
these files, does not require it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from graph.errors import BadGraph

MAX_TEXT_BYTES = 64 << 20  # bytes; limit of the text form, whose parser is slow

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "double": _FIELD.TYPE_DOUBLE,
    "float": _FIELD.TYPE_FLOAT,
    "int64": _FIELD.TYPE_INT64,
    "int32": _FIELD.TYPE_INT32,
    "uint32": _FIELD.TYPE_UINT32,
    "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
}


def messages(package: str, table: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """Message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for words in (entry.split() for entry in fields.split(",")):
            label = _FIELD.LABEL_REPEATED if "*" in words else _FIELD.LABEL_OPTIONAL
            field = message.field.add(name=words[0], number=int(words[1]), label=label)
            if words[-1] in _TYPES:
                field.type = _TYPES[words[-1]]
                if label == _FIELD.LABEL_REPEATED:
                    if field.type not in (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES):
                        field.options.packed = False  # as the frameworks write it; both encodings are read
                else:  # explicit presence (HasField), as in proto2
                    field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{words[0]}")
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{words[-1]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in table}


def parse_message(kind: Callable[..., Any], data: bytes, what: str) -> Any:
    """The message in the bytes. Raises BadGraph."""
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise _no_model(what, str(error)) from None
    return message


def parse_text(kind: Callable[..., Any], data: bytes, what: str) -> Any:
    """The message in the text form. Raises BadGraph with the line."""
    if len(data) > MAX_TEXT_BYTES:
        found, limit = f"{len(data):,} bytes of text", f"at most {MAX_TEXT_BYTES:,}"
        raise BadGraph.one("too_large", "document", found, limit, "send the binary form")
    message = kind()
    try:
        text_format.Parse(data.decode(), message, allow_unknown_field=True)
    except UnicodeDecodeError as error:
        raise _no_model(what, f"text that is not UTF-8 at byte {error.start}") from None
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise _no_model(what, str(error)[:200]) from None
    return message


def message_to_dict(message: Message) -> dict[str, Any]:
    """A message as plain data, for annotations."""
    plain: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return plain


def fill_message(message: Message, plain: Mapping[str, Any], framework: str) -> None:
    """Fill a message from plain data of `message_to_dict`. Raises BadGraph when the data does not fit the message."""
    try:
        json_format.ParseDict(dict(plain), message)
    except (json_format.ParseError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadGraph.one(
            "bad_note",
            f"annotations.{framework}",
            str(error)[:160],
            "the annotation written by the reader",
            "read the file again",
        ) from None


def message_to_text(message: Message) -> bytes:
    return str(text_format.MessageToString(message)).encode()


def _no_model(what: str, why: str) -> BadGraph:
    return BadGraph.one(
        "not_a_model",
        "document",
        f"bytes that are not a {what} ({why})",
        f"a {what}, nested at most 100 deep",
        "export the model again, or check that it was copied whole",
    )


VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def fields_of(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, end of the content) per top-level field; number 0 for an invalid field.

    In truncated data the end of the last field may lie past the end of the bytes.
    """
    at, stop = start, len(data) if end is None else min(end, len(data))
    while at < stop:
        key, at = _varint(data, at, stop)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            _, after = _varint(data, at, stop)
        elif kind == LENGTH:
            length, at = _varint(data, at, stop)
            after = at + length
        else:
            after = at + {FIXED64: 8, FIXED32: 4}.get(kind, 0)
        if at <= 0 or number == 0 or kind not in (VARINT, FIXED64, LENGTH, FIXED32):
            yield 0, kind, 0, 0
            return
        yield number, kind, at, after
        at = after


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """(number, offset after it); (0, -1) without a complete varint."""
    value = shift = 0
    while 0 <= at < stop and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return 0, -1


_TEXT = re.compile(rb"[\x09\x0a\x0d\x20-\x7e\x80-\xff]*\Z")


def is_text(data: bytes, names: str) -> bool:
    """True when the bytes begin as the text form of a message with one of the fields `names` (a regex alternation)."""
    head = re.sub(rb"#[^\n]*", b"", data[:4096]).lstrip()
    return bool(_TEXT.match(head)) and bool(re.match(rb"(" + names.encode() + rb")\s*[:{<]", head))
