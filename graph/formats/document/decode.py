"""Decoding of documents: JSON or msgpack, rows or columns. Errors list every fault with its path."""

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
    """True when the first non-blank byte opens a JSON object."""
    return data[:64].removeprefix(_BOM).lstrip()[:1] == b"{"


def is_msgpack(data: bytes) -> bool:
    """True when the first byte opens a msgpack map."""
    return bool(data) and (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF))


def decode(data: bytes) -> Document | Columns:
    """Records of a document. Raises BadGraph with up to ten findings."""
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
    """The document as plain data. Raises `error`, the fault found by the record, where plain decoding fails too."""
    try:
        return decode_plain(data)
    except msgspec.ValidationError:
        raise error from None


def _explain(
    plain: Any, decoders: dict[str, Any], data: bytes, tried: str, error: msgspec.ValidationError
) -> Document | Columns:
    """Retry with the record that `format` names; raise BadGraph with every fault when that fails too."""
    format = plain.get("format") if isinstance(plain, dict) else None
    known = isinstance(format, str) and format in _RECORDS
    if isinstance(format, str) and known and format != tried:
        try:
            document: Document | Columns = decoders[format].decode(data)
            return document
        except msgspec.ValidationError as other:
            tried, error = format, other
    findings = Findings()
    if isinstance(plain, dict) and not known:
        is_report = isinstance(format, str) and format.startswith("remat-report/")
        remedy = "name its model; `remat explain` reads a report" if is_report else f'set "format": "{ROWS}"'
        findings.add(
            "unknown_format",
            "format",
            "nothing" if "format" not in plain else faults.describe_data(format),
            f"{ROWS!r} or {COLUMNS!r}",
            remedy,
        )
    else:
        faults.collect_type_errors(_RECORDS[tried], plain, findings)
    findings.settle()
    raise _from_message(error)


def _from_message(error: msgspec.ValidationError) -> BadGraph:
    """A msgspec message as a finding, for faults that the record walk does not find, such as numbers past 64 bits."""
    message, _, place = str(error).partition(" - at `$")
    path = place.rstrip("`").removeprefix(".") or "document"
    code = "number_too_large" if "out of range" in message else "wrong_type"
    remedy = "write a number that fits 64 bits" if code == "number_too_large" else "correct this field"
    return BadGraph.one(code, path, message, "data that matches the schema", remedy)


def _not_parseable(data: bytes, error: Exception) -> BadGraph:
    """Syntax error with its position, and for JSON an excerpt of the lines around it."""
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
