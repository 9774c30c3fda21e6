"""Request bodies: read up to a limit, decompressed up to another, never trusted before either."""

from __future__ import annotations

import asyncio
import io
import zlib
from collections.abc import Iterator, Mapping

import anyio.to_thread
import msgspec
import zstandard
from starlette.requests import ClientDisconnect, Request

from app.api.service.admission import RequestMemory, request_memory
from app.errors import TooLarge, TooSlow, Unparseable, Unsupported
from app.models.json_object import decode_object
from app.settings import Settings
from app.telemetry import metrics
from graph.errors import Finding

CODINGS = ("identity", "gzip", "zstd")
GZIP_CHUNK = 1 << 16  # bytes out of gzip at a time
ZSTD_CHUNK = 1 << 10  # bytes into zstd at a time


async def read_body(request: Request, settings: Settings) -> bytes:
    """The decompressed body. Raises TooLarge, TooSlow, Busy, Unsupported, Unparseable."""
    coding, held = content_coding(request.headers.get("content-encoding", "")), request_memory(request)
    raw = await _raw(request, settings, held)
    if coding == "identity":
        return raw
    parsers = held.admission.parsers
    data = await anyio.to_thread.run_sync(_decompressed, raw, coding, settings, held, limiter=parsers)
    held.give(len(raw))
    return data


def content_coding(header: str) -> str:
    """The one coding a body comes in. Raises Unsupported."""
    codings = [word.strip().lower() for word in header.split(",") if word.strip()]
    known = [word for word in codings if word != "identity"]
    if len(known) > 1 or any(word.removeprefix("x-") not in CODINGS for word in known):
        raise Unsupported(
            f"content-encoding {header[:80]!r} is not read; send {' or '.join(CODINGS)}",
            code="unsupported_encoding",
            headers={"Accept-Encoding": ", ".join(CODINGS)},
        )
    return known[0].removeprefix("x-") if known else "identity"


async def _raw(request: Request, settings: Settings, held: RequestMemory) -> bytes:
    most = settings.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise _too_large("body", f"{declared} bytes", "REMAT_BODY_BYTES", most)
    whole, size = io.BytesIO(), 0  # grows in place, and goes back to the system when it goes
    began = asyncio.get_running_loop().time() + settings.body_seconds
    try:
        async with asyncio.timeout_at(began) as patience:
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large("body", f"more than {most} bytes", "REMAT_BODY_BYTES", most)
                held.take(len(part))
                whole.write(part)
                patience.reschedule(began + size / settings.slowest_bytes)
    except TimeoutError:
        metrics.count_refused("REMAT_BODY_SECONDS")
        raise _too_slow(size, settings) from None
    except ClientDisconnect:
        raise Unparseable("the connection ended before the body did", code="truncated") from None
    return whole.getvalue()


def _too_slow(size: int, settings: Settings) -> TooSlow:
    seconds, rate = settings.body_seconds, settings.slowest_bytes
    return TooSlow(
        f"{size} bytes of the body came in {seconds:g} s and a second more for every {rate} bytes; "
        "send it faster, compress it, or raise REMAT_BODY_SECONDS",
        limit={"name": "REMAT_BODY_SECONDS", "value": seconds},
    )


def _decompressed(raw: bytes, coding: str, settings: Settings, held: RequestMemory) -> bytes:
    most, whole, size = settings.decompressed_bytes, io.BytesIO(), 0
    try:
        for part in _gunzipped(raw) if coding == "gzip" else _unzstd(raw, settings.zstd_window_bytes):
            size += len(part)
            if size > most:
                raise _too_large("decompressed body", f"more than {most} bytes", "REMAT_DECOMPRESSED_BYTES", most)
            held.take(len(part))
            whole.write(part)
    except (zlib.error, zstandard.ZstdError) as error:
        finding = Finding("bad_compression", "body", str(error)[:200], f"a {coding} stream", "compress it again")
        raise Unparseable(str(finding), [finding]) from None
    return whole.getvalue()


def _gunzipped(raw: bytes) -> Iterator[bytes]:
    """Pieces of every member, at most a chunk at a time."""
    while raw:
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        rest = raw
        while not member.eof:
            part = member.decompress(rest, GZIP_CHUNK)
            rest = member.unconsumed_tail
            if not part and not rest and not member.eof:
                raise zlib.error("the stream ends too early")
            yield part
        raw = member.unused_data


def _unzstd(raw: bytes, window: int) -> Iterator[bytes]:
    """Pieces of every frame. A block of four bytes may stand for 128 KiB, so little goes in at a time."""
    while raw:
        frame = zstandard.ZstdDecompressor(max_window_size=window).decompressobj()
        for start in range(0, len(raw), ZSTD_CHUNK):
            yield frame.decompress(raw[start : start + ZSTD_CHUNK])
            if frame.eof:
                raw = frame.unused_data + raw[start + ZSTD_CHUNK :]
                break
        else:
            raise zstandard.ZstdError("the stream ends too early")


def _too_large(what: str, found: str, setting: str, most: int) -> TooLarge:
    finding = Finding("too_large", what, found, f"at most {most} bytes", f"send less, or raise {setting}")
    return TooLarge(str(finding), [finding], limit={"name": setting, "value": most})


class _Graph(msgspec.Struct):
    """Of a question only how long its graph is."""

    graph: msgspec.Raw = msgspec.Raw()


def raw_fields(data: bytes, settings: Settings) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, not decoded yet. Raises Unparseable, BadRequest, and TooLarge past a limit.

    A body of nothing but short names would take a hundred times its bytes as a dict.
    """
    most = settings.fields_bytes
    if len(data) > most and len(data) - len(memoryview(decode_object(data, _Graph).graph)) > most:
        raise _too_large("body", f"more than {most} bytes beside the graph", "REMAT_FIELDS_BYTES", most)
    fields: dict[str, msgspec.Raw] = decode_object(data, dict[str, msgspec.Raw])
    return fields


def media_type_of(headers: Mapping[str, str]) -> str:
    """The content type without parameters, lower case; empty when there is none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
