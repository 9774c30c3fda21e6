"""Logs: one line per event with its request and operation ids; JSON unless written to a terminal.

Modules log `key=value` pairs through their own logger. Processors here turn the pairs into fields.
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
    """Send all logs of this process to `stream`; default: standard error."""
    target = stream or sys.stderr
    is_terminal = target.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer(serializer=_as_json)
    )
    handler = logging.StreamHandler(target)
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
                *([] if is_terminal else [structlog.processors.format_exc_info]),
                renderer,
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _pairs(_: Any, __: str, event: EventDict) -> EventDict:
    """The event with its `key=value` pairs as fields, if the message consists of pairs only."""
    record: logging.LogRecord = event["_record"]
    words = str(record.msg).split(" ")
    pairs = [PAIR.fullmatch(word) for word in words]
    arguments = list(event.pop("positional_args", ()))
    if not all(pairs) or sum("%" in word for word in words) != len(arguments):
        return event
    fields: dict[str, Any] = {}
    for pair in filter(None, pairs):
        value = arguments.pop(0) if pair[2].startswith("%") else pair[2]
        fields[pair[1]] = round(value, 6) if isinstance(value, float) else value
    return {**event, "event": str(record.msg), **fields}


def _trace(_: Any, __: str, event: EventDict) -> EventDict:
    """The event with the id of the current trace."""
    context = trace.get_current_span().get_span_context()
    return {**event, "trace": f"{context.trace_id:032x}"} if context.is_valid else event


def _as_json(event: dict[str, Any], **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode("utf-8", "replace")
