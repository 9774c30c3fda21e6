"""Wires for tests of clients: into a service of this process, recorded on the way."""

from __future__ import annotations

import anyio.to_thread
import httpx2
import zstandard
from starlette.testclient import TestClient


class Recording(httpx2.BaseTransport):
    """Passes requests on, and remembers them with their bodies as the service reads them."""

    def __init__(self, service: TestClient):
        self.inner = service._transport
        self.asked: list[tuple[httpx2.Request, bytes]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = request.read()
        if request.headers.get("content-encoding") == "zstd":
            body = zstandard.ZstdDecompressor().decompress(body)
        self.asked.append((request, body))
        return self.inner.handle_request(request)


class Forgetful(Recording):
    """Loses the first answers on their way back: what was asked has been done all the same."""

    def __init__(self, service: TestClient, times: int):
        super().__init__(service)
        self.times = times

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        if self.times > 0:
            self.times -= 1
            raise httpx2.ReadError("connection reset")
        return answer


class Threaded(httpx2.AsyncBaseTransport):
    """A blocking wire for an async client."""

    def __init__(self, wire: httpx2.BaseTransport):
        self.wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        def send() -> httpx2.Response:
            answer = self.wire.handle_request(request)
            headers = [pair for pair in answer.headers.multi_items() if pair[0] != "content-encoding"]
            return httpx2.Response(answer.status_code, headers=headers, content=answer.read())  # decoded

        return await anyio.to_thread.run_sync(send)
