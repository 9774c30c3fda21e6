"""Validation of plain data against a msgspec record: every fault, with its path.

msgspec stops at the first fault. This slower walk runs only after such a failure; it visits the same record types, so
both accept the same fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec
from msgspec import inspect

from graph.errors import Findings, quoted


def collect_type_errors(record: type[msgspec.Struct], data: Any, findings: Findings) -> None:
    """Add a finding for every place where `data` does not match `record`."""
    _visit(inspect.type_info(record), data, "", findings)


def describe_data(data: Any) -> str:
    """A short description of a piece of data for a message."""
    if isinstance(data, str):
        return quoted(data)
    if isinstance(data, dict):
        return f"an object of {len(data)} fields"
    if isinstance(data, list):
        return f"a list of {len(data)}"
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    if isinstance(data, bytes | bytearray):
        return f"{len(data)} raw bytes"
    return repr(data) if isinstance(data, float) or abs(data) < 10**30 else f"a number of {len(str(data))} digits"


def did_you_mean(word: str, words: Iterable[str], otherwise: str) -> str:
    """Remedy that suggests the closest of `words`; `otherwise` without a close match."""
    likely = (w for w in words if w[:1] == word[:1] and abs(len(w) - len(word)) <= 3 and len(w) <= 100)
    close = difflib.get_close_matches(word, list(islice(likely, 500)), 1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def _visit(kind: inspect.Type, data: Any, path: str, findings: Findings) -> None:
    if isinstance(kind, inspect.AnyType):
        return
    if isinstance(kind, inspect.UnionType):
        member = next((one for one in kind.types if _matches(one, data)), None)
        if member is not None:
            _visit(member, data, path, findings)
        else:
            _wrong_type(kind, data, path, findings)
    elif not _matches(kind, data):
        _wrong_type(kind, data, path, findings)
    elif isinstance(kind, inspect.StructType):
        _struct(kind, data, path, findings)
    elif isinstance(kind, inspect.ListType):
        for i, item in enumerate(data):
            _visit(kind.item_type, item, f"{path}[{i}]", findings)
    elif isinstance(kind, inspect.TupleType):
        _tuple(kind, data, path, findings)
    elif isinstance(kind, inspect.DictType):
        for key, item in data.items():
            _visit(kind.key_type, key, _join(path, "key"), findings)
            _visit(kind.value_type, item, _join(path, str(key)), findings)
    elif isinstance(kind, inspect.LiteralType):
        _literal(kind, data, path, findings)
    else:
        _bounds(kind, data, path, findings)


def _tuple(kind: inspect.TupleType, data: list[Any], path: str, findings: Findings) -> None:
    if len(data) != len(kind.item_types):
        findings.add(
            "wrong_type",
            path,
            f"a list of {len(data)}",
            f"a list of {len(kind.item_types)}",
            "give exactly as many entries",
        )
    for i, (item_type, item) in enumerate(zip(kind.item_types, data, strict=False)):
        _visit(item_type, item, f"{path}[{i}]", findings)


def _literal(kind: inspect.LiteralType, data: Any, path: str, findings: Findings) -> None:
    words = [str(word) for word in kind.values]
    if data not in kind.values:
        findings.add(
            "unknown_word",
            path,
            describe_data(data),
            "one of " + ", ".join(words),
            did_you_mean(data, words, "use one of these words"),
        )


def _struct(kind: inspect.StructType, data: dict[Any, Any], path: str, findings: Findings) -> None:
    fields = {field.encode_name: field for field in kind.fields}
    for key in data:
        if key not in fields:
            findings.add(
                "unknown_field",
                _join(path, str(key)[:80]),
                f"field {quoted(str(key))}",
                _first_names(fields),
                did_you_mean(str(key), fields, "remove it, or put it under `annotations`"),
            )
    for name, field in fields.items():
        if name in data:
            _visit(field.type, data[name], _join(path, name), findings)
        elif field.required:
            findings.add(
                "missing_field", path or "document", f"no field {name!r}", _expected(field.type), f"add {name!r}"
            )


def _first_names(fields: Iterable[str]) -> str:
    names = list(fields)
    return "one of " + ", ".join(names[:16]) + (", ..." if len(names) > 16 else "")


def _bounds(kind: inspect.Type, data: Any, path: str, findings: Findings) -> None:
    """Ranges of numbers and lengths of strings."""
    if isinstance(kind, inspect.StrType):
        if kind.min_length and len(data) < kind.min_length:
            findings.add("empty_name", path, "an empty string", "a name", "give it a name")
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        low, high = kind.ge, kind.le
        if (low is not None and data < low) or (high is not None and data > high):
            top = "" if high is None else f" and at most {high}"
            code = "negative_number" if low is not None and data < low else "number_too_large"
            findings.add(code, path, describe_data(data), f"a number of at least {low}{top}", "correct the number")


def _matches(kind: inspect.Type, data: Any) -> bool:
    """True when the data has the outer type `kind`; contents are not checked."""
    if isinstance(kind, inspect.NoneType):
        return data is None
    if isinstance(kind, inspect.BoolType):
        return isinstance(data, bool)
    if isinstance(kind, inspect.IntType):
        return isinstance(data, int) and not isinstance(data, bool)
    if isinstance(kind, inspect.FloatType):
        return isinstance(data, int | float) and not isinstance(data, bool)
    if isinstance(kind, inspect.StrType | inspect.LiteralType):
        return isinstance(data, str)
    if isinstance(kind, inspect.ListType | inspect.TupleType):
        return isinstance(data, list)
    if isinstance(kind, inspect.StructType | inspect.DictType):
        return isinstance(data, dict)
    raise TypeError(f"no check for {type(kind).__name__}; add it to graph/formats/document/faults.py")


def _wrong_type(kind: inspect.Type, data: Any, path: str, findings: Findings) -> None:
    findings.add(
        "wrong_type", path or "document", describe_data(data), _expected(kind), "correct the type of this field"
    )


_WORDS: dict[type[inspect.Type], str] = {
    inspect.NoneType: "null",
    inspect.BoolType: "true or false",
    inspect.IntType: "an integer",
    inspect.FloatType: "a number",
    inspect.StrType: "a string",
    inspect.ListType: "a list",
    inspect.TupleType: "a list",
    inspect.StructType: "an object",
    inspect.DictType: "an object",
}


def _expected(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_expected(one) for one in kind.types)
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(map(str, kind.values))
    return _WORDS.get(type(kind), "data")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
