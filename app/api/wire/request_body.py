"""Request bodies: reading, decompression and field splitting, each with size and time limits."""

from __future__ import annotations

import asyncio
import io
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio.to_thread
import msgspec
import zstandard
from starlette.requests import ClientDisconnect, Request

from app.api.service.process_admission import RequestMemory, request_memory
from app.errors import TooLarge, TooSlow, Unparseable, Unsupported
from app.models.json_object import decode_object
from app.settings import Settings
from app.telemetry import metrics
from graph.errors import Finding

CODINGS = ("identity", "gzip", "zstd")
GZIP_CHUNK = 1 << 16  # bytes per step of gzip, compressed and decompressed
ZSTD_CHUNK = 1 << 10  # compressed bytes per step of zstd: a block of four bytes may expand to 128 KiB
MAX_FIRST_BYTES = 64 << 20  # decompressed bytes that are kept before the size of the whole body is known
MAX_MEMBERS = 10_000  # gzip members or zstd frames of a body, each of which costs a decompressor


async def read_body(request: Request, settings: Settings) -> bytes:
    """The decompressed body. Raises TooLarge, TooSlow, Busy, Unsupported, Unparseable."""
    coding, memory = content_coding(request.headers.get("content-encoding", "")), request_memory(request)
    raw = await _raw(request, settings, memory)
    if coding == "identity":
        return raw
    unpackers = memory.admission.unpackers
    data = await anyio.to_thread.run_sync(_decompressed, raw, coding, settings, memory, limiter=unpackers)
    memory.give(len(raw))
    return data


def content_coding(header: str) -> str:
    """The content coding of a body. Raises Unsupported for unknown or multiple codings."""
    codings = [word.strip().lower() for word in header.split(",") if word.strip()]
    applied = [word for word in codings if word != "identity"]
    if len(applied) > 1 or any(word.removeprefix("x-") not in CODINGS for word in applied):
        raise Unsupported(
            f"unsupported content-encoding {header[:80]!r}; use {' or '.join(CODINGS)}",
            code="unsupported_encoding",
            headers={"Accept-Encoding": ", ".join(CODINGS)},
        )
    return applied[0].removeprefix("x-") if applied else "identity"


async def _raw(request: Request, settings: Settings, memory: RequestMemory) -> bytes:
    limit = settings.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large("body", f"{int(declared):,} bytes", settings, "body_bytes")
    buffer, size = io.BytesIO(), 0
    began = asyncio.get_running_loop().time() + settings.body_seconds
    try:
        async with asyncio.timeout_at(began) as timeout:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large("body", f"more than {limit:,} bytes", settings, "body_bytes")
                memory.take(len(part))
                buffer.write(part)
                timeout.reschedule(began + size / settings.slowest_bytes)
    except TimeoutError:
        metrics.count_refused("REMAT_BODY_SECONDS")
        raise _too_slow(size, settings) from None
    except ClientDisconnect:
        raise Unparseable("the connection was closed before the end of the body", code="truncated") from None
    return buffer.getvalue()


def _too_slow(size: int, settings: Settings) -> TooSlow:
    seconds, rate = settings.body_seconds, settings.slowest_bytes
    return TooSlow(
        f"received {size:,} bytes of the body within {seconds:g} s plus 1 s per {rate:,} bytes; "
        "send faster, compress the body, or raise REMAT_BODY_SECONDS",
        limit={"name": "REMAT_BODY_SECONDS", "value": seconds},
    )


def _decompressed(
    raw: bytes, coding: str, settings: Settings, memory: RequestMemory, clock: Callable[[], float] = time.monotonic
) -> bytes:
    """The body. One of more than MAX_FIRST_BYTES is measured first, so that a bomb takes no memory before it fails."""
    until = clock() + settings.body_seconds
    try:
        buffer, size = io.BytesIO(), 0
        for part in _limited(raw, coding, settings, until, clock):
            size += len(part)
            if size <= MAX_FIRST_BYTES:
                memory.take(len(part))
                buffer.write(part)
        if size > MAX_FIRST_BYTES:
            memory.take(size - buffer.tell())
            buffer = io.BytesIO()
            buffer.writelines(_limited(raw, coding, settings, until, clock))
    except (zlib.error, zstandard.ZstdError) as error:
        finding = Finding("bad_compression", "body", str(error)[:200], f"a {coding} stream", "compress it again")
        if "too much memory" not in str(error):
            raise Unparseable(str(finding), [finding]) from None
        window, setting = settings.zstd_window_bytes, "REMAT_ZSTD_WINDOW_BYTES"
        remedy = f"compress it without --long and --ultra, or raise {setting}"
        found, expected = "a larger window of the zstd stream", f"at most {window:,} bytes"
        finding = Finding("bad_compression", "body", found, expected, remedy)
        raise Unparseable(str(finding), [finding], limit={"name": setting, "value": window}) from None
    return buffer.getvalue()


def _limited(raw: bytes, coding: str, settings: Settings, until: float, clock: Callable[[], float]) -> Iterator[bytes]:
    """Chunks of the decompressed body. Raises TooLarge past REMAT_DECOMPRESSED_BYTES, and TooSlow at `until`."""
    limit, size = settings.decompressed_bytes, 0
    for part in _unpacked(raw, coding, settings.zstd_window_bytes):
        size += len(part)
        if size > limit:
            raise _too_large("decompressed body", f"more than {limit:,} bytes", settings, "decompressed_bytes")
        if clock() > until:
            raise TooSlow(
                f"the body was not decompressed within {settings.body_seconds:g} s; send less, "
                "or raise REMAT_BODY_SECONDS",
                limit={"name": "REMAT_BODY_SECONDS", "value": settings.body_seconds},
            )
        yield part


def _unpacked(raw: bytes, coding: str, window: int) -> Iterator[bytes]:
    """Chunks of all gzip members or zstd frames, in time linear in the bytes in and out. Raises Unparseable."""
    error, step = (zlib.error, GZIP_CHUNK) if coding == "gzip" else (zstandard.ZstdError, ZSTD_CHUNK)
    at = members = 0
    while at < len(raw):
        members += 1
        if members > MAX_MEMBERS:
            sent, expected = f"more than {MAX_MEMBERS} {coding} streams", f"at most {MAX_MEMBERS} streams"
            finding = Finding("bad_compression", "body", sent, expected, "compress the body as one stream")
            raise Unparseable(str(finding), [finding])
        member = _decompressor(coding, window)
        while not member.eof:
            fed = raw[at : at + step]  # only a step: what a member leaves unread is copied
            part = member.decompress(fed, GZIP_CHUNK) if coding == "gzip" else member.decompress(fed)
            # At the end of a member, zlib may have the rest in both.
            at += len(fed) - len(member.unused_data if member.eof else getattr(member, "unconsumed_tail", b""))
            if not fed and not part and not member.eof:
                raise error("unexpected end of stream")
            yield part


def _decompressor(coding: str, window: int) -> Any:
    """Decompressor of one gzip member or zstd frame."""
    if coding == "gzip":
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    return zstandard.ZstdDecompressor(max_window_size=window).decompressobj()


def _too_large(what: str, size: str, settings: Settings, name: str) -> TooLarge:
    limit: int = getattr(settings, name)
    limit_name = settings.limit_name(name)
    is_setting = limit_name.startswith("REMAT_")
    remedy = f"raise {limit_name}" if is_setting else "use a key with a larger quota (remat keys create NAME --bytes N)"
    finding = Finding("too_large", what, size, f"at most {limit:,} bytes", f"send less, or {remedy}")
    return TooLarge(str(finding), [finding], limit={"name": limit_name, "value": limit})


class _Graph(msgspec.Struct):
    """A request of which only the graph is decoded, for its size."""

    graph: msgspec.Raw = msgspec.Raw()


def raw_fields(data: bytes, settings: Settings) -> dict[str, msgspec.Raw]:
    """The undecoded fields of a JSON object. Raises Unparseable, BadRequest, TooLarge.

    The limit excludes the graph: an object of many short keys takes a hundred times its size as a dict.
    """
    limit = settings.fields_bytes
    if len(data) > limit and len(data) - len(memoryview(decode_object(data, _Graph).graph)) > limit:
        raise _too_large("body", f"more than {limit:,} bytes without the graph", settings, "fields_bytes")
    fields: dict[str, msgspec.Raw] = decode_object(data, dict[str, msgspec.Raw])
    return fields


def media_type_of(headers: Mapping[str, str]) -> str:
    """The content type in lower case without parameters; empty if absent."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
