"""Bodies are decompressed up to a limit and no further."""

from __future__ import annotations

import gzip
import itertools
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from app.api.service.process_admission import Admission, RequestMemory
from app.api.wire import request_body
from app.api.wire.request_body import MAX_MEMBERS, _decompressed, content_coding
from app.errors import TooLarge, TooSlow, Unparseable, Unsupported
from app.settings import Settings

PACK = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}
CODINGS = pytest.mark.parametrize("coding", PACK)
SMALL = Settings(decompressed_bytes=1 << 20)
HELD = RequestMemory(Admission(Settings(bodies_bytes=1 << 40, spare_bytes=0)))  # as much as one likes


@CODINGS
@given(parts=st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=3))
def test_every_member_of_a_stream_is_read(coding: str, parts: list[bytes]) -> None:
    assert _decompressed(b"".join(PACK[coding](part) for part in parts), coding, SMALL, HELD) == b"".join(parts)


@CODINGS
def test_a_body_may_have_exactly_the_limit_and_not_a_byte_more(coding: str) -> None:
    assert len(_decompressed(PACK[coding](bytes(1 << 20)), coding, SMALL, HELD)) == 1 << 20
    with pytest.raises(TooLarge, match="REMAT_DECOMPRESSED_BYTES") as caught:
        _decompressed(PACK[coding](bytes((1 << 20) + 1)), coding, SMALL, HELD)
    assert caught.value.limit == {"name": "REMAT_DECOMPRESSED_BYTES", "value": 1 << 20}


@CODINGS
def test_members_that_are_larger_than_a_step_follow_each_other(coding: str) -> None:
    parts = [bytes(300_000), bytes(range(256)) * 1000, bytes(200_000)]  # each of several steps
    assert _decompressed(b"".join(PACK[coding](part) for part in parts), coding, SMALL, HELD) == b"".join(parts)


@CODINGS
def test_a_large_body_is_measured_before_it_takes_memory(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_FIRST_BYTES", 1 << 18)
    memory = RequestMemory(Admission(Settings(bodies_bytes=1 << 20, spare_bytes=0)))
    body = bytes(range(256)) * (1 << 11)
    assert _decompressed(PACK[coding](body), coding, SMALL, memory) == body
    assert memory.bytes == len(body)
    memory.give(memory.bytes)
    with pytest.raises(TooLarge, match="REMAT_DECOMPRESSED_BYTES"):
        _decompressed(PACK[coding](bytes(1 << 21)), coding, SMALL, memory)
    assert memory.bytes <= 1 << 18


@CODINGS
def test_a_truncated_or_foreign_stream_is_not_parseable(coding: str) -> None:
    whole = PACK[coding](b"a graph, so to speak" * 100)
    for broken in (whole[:-5], whole[:3], b"not compressed at all"):
        with pytest.raises(Unparseable, match="compress it again"):
            _decompressed(broken, coding, SMALL, HELD)


@CODINGS
def test_a_body_of_too_many_streams_is_refused(coding: str) -> None:
    assert _decompressed(PACK[coding](b"") * MAX_MEMBERS, coding, SMALL, HELD) == b""
    with pytest.raises(Unparseable, match=f"more than {MAX_MEMBERS} {coding} streams"):
        _decompressed(PACK[coding](b"") * (MAX_MEMBERS + 1), coding, SMALL, HELD)


@CODINGS
def test_what_follows_a_stream_is_not_read_with_it(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, new = [], request_body._decompressor

    class Counting:
        def __init__(self, inner: Any):
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def decompress(self, data: bytes, *most: int) -> bytes:
            read.append(len(data))
            part: bytes = self.inner.decompress(data, *most)
            return part

    monkeypatch.setattr(request_body, "_decompressor", lambda *given: Counting(new(*given)))
    streams = 2_000
    raw = PACK[coding](b"") * streams + PACK[coding](bytes(1 << 20))
    assert len(_decompressed(raw, coding, SMALL, HELD)) == 1 << 20
    step = request_body.GZIP_CHUNK if coding == "gzip" else request_body.ZSTD_CHUNK
    assert len(read) <= streams + 20 + len(raw) // step and max(read) <= step


def test_a_body_that_takes_too_long_to_decompress_is_refused() -> None:
    hours = itertools.count(0, 3600)
    with pytest.raises(TooSlow, match="REMAT_BODY_SECONDS"):
        _decompressed(gzip.compress(b"a graph"), "gzip", SMALL, HELD, clock=lambda: float(next(hours)))


def test_a_window_past_the_limit_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters.from_level(1, window_log=24)
    frame = zstandard.ZstdCompressor(compression_params=wide).compressobj()  # no content size: the window counts
    data = frame.compress(bytes(1 << 19)) + frame.flush()
    with pytest.raises(Unparseable, match=r"too much memory|window") as caught:
        _decompressed(data, "zstd", SMALL, HELD)
    assert caught.value.limit is not None and caught.value.limit["name"] == "REMAT_ZSTD_WINDOW_BYTES"
    assert "raise REMAT_ZSTD_WINDOW_BYTES" in str(caught.value)


@pytest.mark.parametrize("header", ["br", "gzip, zstd", "gzip,gzip", "nonsense"])
def test_other_codings_are_refused_with_those_that_are_read(header: str) -> None:
    with pytest.raises(Unsupported) as caught:
        content_coding(header)
    assert caught.value.headers == {"Accept-Encoding": "identity, gzip, zstd"}


@pytest.mark.parametrize(
    ("header", "coding"), [("", "identity"), ("identity", "identity"), ("GZIP", "gzip"), ("x-gzip", "gzip")]
)
def test_codings_are_read_as_rfc_9110_says(header: str, coding: str) -> None:
    assert content_coding(header) == coding
