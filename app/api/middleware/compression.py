"""Compressed responses: zstd or gzip, as Accept-Encoding prefers, by the responders of Starlette.

Only API paths: pages hold CSRF tokens, whose length a compressed page would reveal (BREACH). Event streams and
responses below MIN_BYTES stay as they are.
"""

from __future__ import annotations

import anyio
import anyio.to_thread
import zstandard
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipResponder, IdentityResponder
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.wire.negotiation import accepted_coding

MIN_BYTES = 1 << 10
GZIP_LEVEL, ZSTD_LEVEL = 6, 3
THREAD_BYTES = 1 << 17  # larger bodies are compressed in a thread
THREADS = 2


class CompressionMiddleware:
    """ASGI middleware that compresses responses of `/v1/` and the OpenAPI document."""

    def __init__(self, app: ASGIApp):
        self.app, self._threads = app, anyio.CapacityLimiter(THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responder = self.app
        if scope["type"] == "http" and (scope["path"].startswith("/v1/") or scope["path"] == "/openapi.json"):
            coding = accepted_coding(Headers(scope=scope).get("accept-encoding", ""), ["zstd", "gzip"])
            if coding == "zstd":
                responder = _ZstdResponder(self.app, self._threads)
            elif coding == "gzip":
                responder = GZipResponder(self.app, MIN_BYTES, GZIP_LEVEL, thread_minimum_size=THREAD_BYTES)
            else:
                responder = IdentityResponder(self.app, MIN_BYTES)  # adds Vary
        await responder(scope, receive, send)


class _ZstdResponder(IdentityResponder):
    content_encoding = "zstd"

    def __init__(self, app: ASGIApp, threads: anyio.CapacityLimiter):
        super().__init__(app, MIN_BYTES)
        self._compressor, self._threads = zstandard.ZstdCompressor(level=ZSTD_LEVEL), threads
        self._stream: zstandard.ZstdCompressionObj | None = None  # of a body that comes in parts

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        if len(body) < THREAD_BYTES:
            return self._compress(body, more_body)
        return await anyio.to_thread.run_sync(self._compress, body, more_body, limiter=self._threads)

    def _compress(self, body: bytes, more_body: bool) -> bytes:
        if self._stream is None:
            if not more_body:
                return self._compressor.compress(body)  # a frame that states its size
            self._stream = self._compressor.compressobj()
        end = zstandard.COMPRESSOBJ_FLUSH_BLOCK if more_body else zstandard.COMPRESSOBJ_FLUSH_FINISH
        return self._stream.compress(body) + self._stream.flush(end)
