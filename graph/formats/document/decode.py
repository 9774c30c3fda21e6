"""Bytes to records: JSON or msgpack, rows or columns, refused with every fault and its place."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from graph.errors import BadGraph, Finding, Findings
from graph.formats.document import faults
from graph.formats.document.schema import COLUMNS, ROWS, Columns, Document
from graph.ir.text import excerpt

_BOM = b"\xef\xbb\xbf"
_RECORDS: dict[str, type[Document] | type[Columns]] = {ROWS: Document, COLUMNS: Columns}
_JSON: dict[str, Any] = {name: msgspec.json.Decoder(record) for name, record in _RECORDS.items()}
_MSGPACK: dict[str, Any] = {name: msgspec.msgpack.Decoder(record) for name, record in _RECORDS.items()}


def is_json(data: bytes) -> bool:
    """True when the first byte that is no space opens an object."""
    return data[:64].removeprefix(_BOM).lstrip()[:1] == b"{"


def is_msgpack(data: bytes) -> bool:
    """True when the first byte opens a msgpack map."""
    return bool(data) and (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF))


def decode(data: bytes) -> Document | Columns:
    """The records of a document. Raises BadGraph with up to ten findings."""
    data = data.removeprefix(_BOM)
    decoders, plain = (_JSON, msgspec.json.decode) if is_json(data) else (_MSGPACK, msgspec.msgpack.decode)
    likely = COLUMNS if COLUMNS.encode() in data else ROWS
    try:
        try:
            document: Document | Columns = decoders[likely].decode(data)
            return document
        except msgspec.ValidationError as error:
            return _explain(_plain(plain, data, error), decoders, data, likely, error)
    except RecursionError:
        raise BadGraph.one(
            "too_deep",
            "document",
            "objects and lists nested hundreds deep",
            "a document of some twenty levels",
            "flatten what is nested",
        ) from None
    except msgspec.ValidationError as error:
        raise _from_message(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise _not_parseable(data, error) from None


def _plain(decode_plain: Any, data: bytes, error: msgspec.ValidationError) -> Any:
    """The document as plain data; what only a record could place is told in the record's words."""
    try:
        return decode_plain(data)
    except msgspec.ValidationError:
        raise error from None


def _explain(
    plain: Any, decoders: dict[str, Any], data: bytes, tried: str, error: msgspec.ValidationError
) -> Document | Columns:
    """The document after all, when it was read as the wrong kind; else raises BadGraph with every fault."""
    named = plain.get("format") if isinstance(plain, dict) else None
    known = isinstance(named, str) and named in _RECORDS
    if isinstance(named, str) and known and named != tried:
        try:
            document: Document | Columns = decoders[named].decode(data)
            return document
        except msgspec.ValidationError as other:
            tried, error = named, other
    findings = Findings()
    if isinstance(plain, dict) and not known:
        findings.add(
            "unknown_format",
            "format",
            "nothing" if "format" not in plain else faults.describe_data(named),
            f"{ROWS!r} or {COLUMNS!r}",
            f'say "format": "{ROWS}"',
        )
    else:
        faults.collect_type_errors(_RECORDS[tried], plain, findings)
    findings.settle()
    raise _from_message(error)


def _from_message(error: msgspec.ValidationError) -> BadGraph:
    """What msgspec says, as a finding; numbers too large for any record come this way."""
    message, _, place = str(error).partition(" - at `$")
    path = place.rstrip("`").removeprefix(".") or "document"
    code = "number_too_large" if "out of range" in message else "wrong_type"
    remedy = "write a number that fits 64 bits" if code == "number_too_large" else "correct this field"
    return BadGraph.one(code, path, message, "data as the schema says", remedy)


def _not_parseable(data: bytes, error: Exception) -> BadGraph:
    """Where the text stops being JSON, or the bytes msgpack, and the lines around it."""
    place = re.search(r"\(byte (\d+)\)", str(error))
    if isinstance(error, UnicodeDecodeError):
        offset = _first_not_utf8(data)
    else:
        offset = int(place[1]) if place else len(data)
    quote = ""
    if is_json(data):
        quote = excerpt(data, offset)
        column = offset - data.rfind(b"\n", 0, offset)
        where = f"line {data.count(bytes([10]), 0, offset) + 1}, column {column}"
    else:
        where = f"byte {offset}"
    found = data[offset : offset + 16].decode("utf-8", "replace") or "the end of the document"
    remedy = "NaN and Infinity are not JSON; leave the field out" if found[:3] in ("NaN", "Inf") else "send it whole"
    return BadGraph(
        [Finding("not_parseable", f"document, {where}", repr(found), "JSON" if is_json(data) else "msgpack", remedy)],
        excerpt=quote,
    )


def _first_not_utf8(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)
