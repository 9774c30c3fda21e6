"""Logs: a line an event, with the request and the operation it is about; JSON unless a terminal reads it.

Modules log `key=value` pairs through their own logger. Here the pairs become fields.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TextIO

import msgspec
import structlog
from opentelemetry import trace
from structlog.typing import EventDict

PAIR = re.compile(r"(\w+)=(%[-+# 0-9.]*[a-z]|[^\s%]*)")


def start(level: str, stream: TextIO | None = None) -> None:
    """Send every log of this process to `stream`, standard error unless said."""
    to = stream or sys.stderr
    for_people = to.isatty()
    shown: Any = (
        structlog.dev.ConsoleRenderer() if for_people else structlog.processors.JSONRenderer(serializer=_as_json)
    )
    handler = logging.StreamHandler(to)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            pass_foreign_args=True,
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                _pairs,
                _trace,
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([] if for_people else [structlog.processors.format_exc_info]),
                shown,
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _pairs(_: Any, __: str, event: EventDict) -> EventDict:
    """The event with the pairs of its text as fields, where the text is nothing but pairs."""
    record: logging.LogRecord = event["_record"]
    words = str(record.msg).split(" ")
    found = [PAIR.fullmatch(word) for word in words]
    given = list(event.pop("positional_args", ()))
    if not all(found) or sum("%" in word for word in words) != len(given):
        return event
    fields: dict[str, Any] = {}
    for pair in filter(None, found):
        value = given.pop(0) if pair[2].startswith("%") else pair[2]
        fields[pair[1]] = round(value, 6) if isinstance(value, float) else value
    return {**event, "event": str(record.msg), **fields}


def _trace(_: Any, __: str, event: EventDict) -> EventDict:
    """The event with the trace it belongs to, so that one leads to the other."""
    context = trace.get_current_span().get_span_context()
    return {**event, "trace": f"{context.trace_id:032x}"} if context.is_valid else event


def _as_json(event: dict[str, Any], **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode("utf-8", "replace")
