"""Decode a JSON object from a client into a typed record."""

from __future__ import annotations

from typing import Any

import msgspec

from app.errors import Unparseable
from graph.errors import Finding
from planner.errors import BadRequest


def decode_object(data: bytes, type: Any) -> Any:
    """The JSON object in `data` as `type`. Raises Unparseable for invalid JSON, BadRequest for an invalid field."""
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        raise BadRequest.one(
            "bad_field", path.strip("`") or "body", message, "the fields of the schema", "see /docs"
        ) from None
    except RecursionError:
        finding = Finding("too_deep", "body", "nesting too deep to parse", "less nesting", "flatten the document")
        raise Unparseable(str(finding), [finding]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        finding = Finding("not_parseable", "body", str(error)[:200], "a JSON object", "correct the syntax")
        raise Unparseable(str(finding), [finding]) from None
