"""Requests of one credential begin a few at a time; those of others never wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.api.auth import fair_share
from app.api.auth.fair_share import BEGINNING, FairShareMiddleware

MANY = 10 * BEGINNING


class Endpoint:
    """Records the requests that have begun; sends the status, a part of the body and the end when told."""

    def __init__(self) -> None:
        self.begun = list[str]()
        self.answering, self.sending, self.ending = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.sending.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(dict(scope["headers"]).get(b"authorization", b"").decode())
        await self.answering.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.sending.wait()
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await self.ending.wait()


async def _send(message: Message) -> None: ...


async def _receive() -> Message:
    return {"type": "http.request"}


def _request(app: FairShareMiddleware, key: str, path: str = "/v1/plans") -> asyncio.Task[None]:
    scope = {"type": "http", "path": path, "headers": [(b"authorization", key.encode())] if key else []}
    call: Awaitable[None] = app(scope, _receive, _send)
    return asyncio.ensure_future(call)


async def _rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(test: Callable[[Endpoint, FairShareMiddleware], Awaitable[None]]) -> None:
    async def all() -> None:
        endpoint = Endpoint()
        app = FairShareMiddleware(endpoint)
        await test(endpoint, app)
        assert not app._lines

    asyncio.run(all())


def test_a_key_that_sends_many_requests_at_once_delays_no_other_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "BEGINNING_S", 60.0)

    async def test(endpoint: Endpoint, app: FairShareMiddleware) -> None:
        attack = [_request(app, "attacker") for _ in range(MANY)]
        others = [_request(app, "bystander"), _request(app, "")]
        await _rounds()
        assert endpoint.begun == ["attacker"] * BEGINNING + ["bystander", ""]
        endpoint.answering.set()
        endpoint.ending.set()
        await asyncio.gather(*attack, *others)
        assert endpoint.begun.count("attacker") == MANY

    run(test)


def test_an_open_path_has_a_line_of_its_own_whoever_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "BEGINNING_S", 60.0)

    async def test(endpoint: Endpoint, app: FairShareMiddleware) -> None:
        probes = [_request(app, f"key {n}", "/readyz") for n in range(MANY)]
        others = [_request(app, "another", "/livez"), _request(app, "key 1")]
        await _rounds()
        assert endpoint.begun == [f"key {n}" for n in range(BEGINNING)] + ["another", "key 1"]
        endpoint.answering.set()
        endpoint.ending.set()
        await asyncio.gather(*probes, *others)

    run(test)


def test_a_stream_and_a_request_without_an_answer_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "BEGINNING_S", 0.001)

    async def test(endpoint: Endpoint, app: FairShareMiddleware) -> None:
        waits = [_request(app, "a") for _ in range(3 * BEGINNING)]
        async with asyncio.timeout(5):
            while len(endpoint.begun) < 3 * BEGINNING:  # nobody is answered
                await asyncio.sleep(0.001)
        monkeypatch.setattr(fair_share, "BEGINNING_S", 60.0)
        endpoint.answering.set()  # all are streams now, none of which ends
        more = [_request(app, "a") for _ in range(MANY)]
        async with asyncio.timeout(5):
            while len(endpoint.begun) < 3 * BEGINNING + MANY:
                await asyncio.sleep(0)
        endpoint.ending.set()
        await asyncio.gather(*waits, *more)

    run(test)


def test_a_request_has_begun_once_the_first_part_of_its_body_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "BEGINNING_S", 60.0)

    async def test(endpoint: Endpoint, app: FairShareMiddleware) -> None:
        endpoint.sending.clear()
        endpoint.answering.set()
        requests = [_request(app, "a") for _ in range(BEGINNING + 1)]
        await _rounds()
        assert len(endpoint.begun) == BEGINNING  # the status is sent
        endpoint.sending.set()
        await _rounds()
        assert len(endpoint.begun) == BEGINNING + 1
        endpoint.ending.set()
        await asyncio.gather(*requests)

    run(test)


@pytest.mark.parametrize("after_its_turn_came", [False, True])
def test_a_request_that_is_cancelled_while_it_waits_leaves_its_place(
    after_its_turn_came: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_share, "BEGINNING_S", 60.0)

    async def test(endpoint: Endpoint, app: FairShareMiddleware) -> None:
        first = [_request(app, "a") for _ in range(BEGINNING)]
        waiting = [_request(app, "a") for _ in range(3)]
        await _rounds()
        if after_its_turn_came:
            first[0].cancel()
            await asyncio.sleep(0)  # its turn is handed to the first that waits, which has not run yet
        waiting[0].cancel()
        await _rounds()
        assert waiting[0].cancelled()
        assert len(endpoint.begun) == BEGINNING + after_its_turn_came
        endpoint.answering.set()
        endpoint.ending.set()
        await asyncio.gather(*first[after_its_turn_came:], *waiting[1:])
        assert len(endpoint.begun) == BEGINNING + 2

    run(test)
