"""What is too much, too deep, too slow or too strange is refused, and others are answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import zstandard
from starlette.testclient import TestClient

from app.api.main import create_app
from app.api.middleware.connection_limits import limited_protocol
from app.api.middleware.request_admission import AdmissionMiddleware
from app.api.middleware.trusted_host import LOOPBACK_HOSTS
from app.api.service.process_admission import Admission, RequestMemory, SlotPool
from app.api.service.service import Service
from app.api.wire.request_body import raw_fields
from app.errors import Busy, TooLarge
from app.settings import Settings
from tests.app.conftest import chain

JSON = {"content-type": "application/json"}


def told(answer: Any) -> tuple[int, str, str | None]:
    """(status, code, name of the limit)."""
    said = answer.json()
    return answer.status_code, said["code"], (said["limit"] or {}).get("name")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """A service with the limits that a test names."""
    with contextlib.ExitStack() as running:

        def start(**limits: Any) -> TestClient:
            app = create_app(Settings(data=tmp_path, workers=1, drain_seconds=0, **limits))
            return running.enter_context(TestClient(app, raise_server_exceptions=False))

        yield start


@pytest.mark.parametrize(
    ("limits", "document", "code"),
    [
        ({"nodes": 7}, chain(4), "too_many_nodes"),
        ({"values": 8}, chain(4), "too_many_values"),
        ({"name_length": 1}, chain(4), "name_too_long"),
        ({"attribute_bytes": 64}, {**chain(1), "annotations": {"note": "x" * 100}}, "too_large"),
        ({"depth": 8}, {**chain(1), "annotations": {"a": json.loads("[" * 9 + "]" * 9)}}, "too_deep"),
    ],
    ids=["nodes", "values", "names", "attributes", "depth"],
)
def test_a_graph_past_a_limit_is_refused(
    limits: dict[str, int], document: dict[str, Any], code: str, small: Any
) -> None:
    ((name, most),) = limits.items()
    client = small(**limits)
    for answer in (client.post("/v1/graphs", json=document), client.post("/v1/plans", json={"graph": document})):
        assert told(answer) == (422, code, f"REMAT_{name.upper()}"), answer.text
        assert answer.json()["limit"]["value"] == most


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_bomb_is_refused_where_it_passes_the_limit(coding: str, small: Any) -> None:
    client = small(decompressed_bytes=1 << 20)
    packed = gzip.compress(bytes(1 << 24)) if coding == "gzip" else zstandard.compress(bytes(1 << 24))
    for path in ("/v1/graphs", "/v1/plans", "/v1/curves", "/v1/fits"):
        answer = client.post(path, content=packed, headers={**JSON, "content-encoding": coding})
        assert told(answer) == (413, "too_large", "REMAT_DECOMPRESSED_BYTES"), path
    assert client.app.state.service.admission.bytes == 0  # and what it held is given back


def test_fields_of_a_question_are_limited_and_its_graph_is_not_one(small: Any) -> None:
    client = small(fields_bytes=2048)
    question = {"graph": {**chain(4), "annotations": {"note": "x" * 4096}}, "budget": "90%", "planner": "greedy"}
    assert client.post("/v1/plans", json=question).status_code == 201
    many = question | {f"n{n}": 0 for n in range(500)}
    for path in ("/v1/plans", "/v1/curves", "/v1/fits"):
        assert told(client.post(path, json=many)) == (413, "too_large", "REMAT_FIELDS_BYTES"), path
    twice = json.dumps(question)[:-1] + ', "graph": ' + json.dumps(chain(1)) + "}"  # the first one is no graph then
    assert told(client.post("/v1/plans", content=twice, headers=JSON)) == (413, "too_large", "REMAT_FIELDS_BYTES")


def test_a_body_of_nothing_but_names_is_never_a_dict() -> None:
    data = b'{"graph":{},' + b",".join(b'"%d":0' % n for n in range(100_000)) + b"}"
    with pytest.raises(TooLarge, match="REMAT_FIELDS_BYTES"):
        raw_fields(data, Settings(fields_bytes=100_000))


@pytest.mark.parametrize(
    "text",
    [
        '{"graph": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"graph": ' + '{"values":' * 50_000 + "0" + "}" * 50_000 + "}",
        '{"graph_id": "x", "budget": ' + "9" * 100_000 + "}",
        '{"graph_id": "x", "seed": ' + "9" * 5_000 + "}",
        '{"graph_id": "x", "budget": 1e999999}',
        '{"graph_id": "x", "search_seconds": -0.0, "iterations": 99999999999999999999999}',
        '{"graph": {"format": "remat/1", "values": [{"name": "x", "shape": [' + "9" * 4_000 + "]}]}}",
        '{"graph": {"format": "remat/1", "values": [{"name": "x", "shape": [9223372036854775807, 9223372036854775807],'
        ' "dtype": "float64", "role": "input"}], "nodes": [], "outputs": []}, "budget": "50%"}',
        '{"graph": NaN}',
        '{"graph_id": "\\ud800"}',
        '{"graph_id": "' + "\\u0000" * 1_000 + '"}',
        "[" * 1_000_000,
        "",
    ],
    ids=lambda text: text[:40],
)
def test_deep_nests_and_huge_numbers_are_refused(text: str, client: TestClient) -> None:
    answer = client.post("/v1/plans", content=text.encode(), headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "headers",
    [
        {"prefer": "wait=1e308"},
        {"prefer": "wait=-1"},
        {"prefer": ",".join(["wait=1"] * 2_000)},
        {"accept": ",".join(f"a/{n};q=0.{n}" for n in range(1_000))},
        {"accept": ";;;,,,q="},
        {"if-none-match": ",".join(['"x"'] * 2_000)},
        {"content-encoding": "gzip, gzip, gzip"},
        {"content-encoding": "identity," * 1_000},
        {"content-type": "application/json; charset=utf-7"},
        {"idempotency-key": "k" * 256},
        {"last-event-id": "9" * 1_000},
        {"content-length": "9" * 30},
        {"authorization": "Bearer " + "x" * 4_000},
        {"traceparent": "00-" + "z" * 52},
        {"x-forwarded-for": "','"},
        {"host": "[::1"},
        {"range": "bytes=0-,1-,2-"},
        {"x-http-method-override": "DELETE"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_header_games_are_lost(headers: dict[str, str], client: TestClient) -> None:
    body = json.dumps({"graph": chain(2), "budget": "90%", "planner": "greedy", "iterations": 2})
    for method, path in (("POST", "/v1/plans"), ("GET", "/v1/graphs/none"), ("GET", "/v1/operations/none/events")):
        answer = client.request(method, path, content=body if method == "POST" else None, headers={**JSON, **headers})
        assert answer.status_code < 500, answer.text


def test_a_post_is_refused_while_memory_runs_low_and_what_is_kept_is_still_shown(small: Any) -> None:
    client = small(spare_bytes=1 << 62)
    answer = client.post("/v1/graphs", json=chain(1))
    assert told(answer) == (429, "busy", "REMAT_SPARE_BYTES")
    assert int(answer.headers["retry-after"]) > 0
    assert client.get("/v1/operations").status_code == 200 and client.get("/livez").status_code == 200


def test_bodies_share_one_limit() -> None:
    admission = Admission(Settings(bodies_bytes=100, spare_bytes=0))
    first, second = RequestMemory(admission), RequestMemory(admission)
    first.take(60)
    with pytest.raises(Busy, match="REMAT_BODIES_BYTES"):
        second.take(60)
    first.give(30)
    second.take(60)
    assert admission.bytes == 90
    with pytest.raises(TooLarge, match="REMAT_BODIES_BYTES"):  # never, however often it asks
        second.take(41)


def test_memory_is_asked_for_before_it_is_taken() -> None:
    admission = Admission(Settings(spare_bytes=100), free=lambda: 150)
    RequestMemory(admission).take(50)
    with pytest.raises(Busy, match="REMAT_SPARE_BYTES"):
        RequestMemory(admission).take(51)


def test_requests_past_the_limit_are_turned_away_and_the_next_one_is_not() -> None:
    async def scenario() -> list[int]:
        leave, statuses = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/slow":
                await leave.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        door = AdmissionMiddleware(app, Admission(Settings(requests=1)))

        async def ask(path: str) -> None:
            await door({"type": "http", "method": "GET", "path": path}, None, send)  # type: ignore[arg-type]

        slow = asyncio.create_task(ask("/slow"))
        await asyncio.sleep(0)
        await ask("/v1/operations")
        await ask("/livez")
        leave.set()
        await slow
        await ask("/v1/operations")
        return statuses

    assert asyncio.run(scenario()) == [429, 200, 200, 200]


def test_streams_are_no_requests_and_one_tenant_has_a_share_of_them() -> None:
    admission = Admission(Settings(requests=1, streams=3, streams_per_key=2))

    def opened(tenant: str) -> RequestMemory:
        admission.require_request_slot()
        admission.requests += 1
        request = RequestMemory(admission)
        request.require_stream(tenant)
        return request

    first, _ = opened("a"), opened("a")
    with pytest.raises(Busy, match="REMAT_STREAMS_PER_KEY"):
        opened("a")
    admission.requests -= 1
    opened("b")
    with pytest.raises(Busy, match="REMAT_STREAMS"):
        opened("c")
    admission.requests -= 1
    first.end()
    admission.requests -= 1
    opened("a")
    assert admission.requests == 0 and admission.streams == {"a": 2, "b": 1}


def test_a_wait_past_the_limit_of_streams_is_answered_with_the_operation(small: Any) -> None:
    client = small(streams=0)
    question = {"graph": chain(3), "budget": "80%", "planner": "greedy", "iterations": 2}
    answer = client.post("/v1/plans", json=question, headers={"prefer": "wait=60"})
    assert answer.status_code == 202
    refused = client.get(f"/v1/operations/{answer.json()['id']}/events?", headers={"last-event-id": "0"})
    assert told(refused) == (429, "busy", "REMAT_STREAMS")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:8000", 200), ("[::1]:8000", 200), ("evil.example:8000", 421), ("", 421)],
)
def test_a_name_that_somebody_else_points_at_this_machine_is_refused(host: str, status: int, tmp_path: Path) -> None:
    app = create_app(Settings(data=tmp_path, workers=0, gc_hours=0), hosts=LOOPBACK_HOSTS)
    with TestClient(app) as client:
        answer = client.get("/v1/operations", headers={"host": host})
    assert answer.status_code == status
    assert status == 200 or (answer.json()["code"] == "unknown_host" and "REMAT_ALLOWED_HOSTS" in answer.text)


def test_a_turn_comes_in_order_and_not_for_too_many() -> None:
    async def scenario() -> list[str]:
        turns, said = SlotPool(1, 1, 60, "REMAT_READ_QUEUE"), []
        leave = asyncio.Event()

        async def take(name: str) -> None:
            try:
                async with turns.turn():
                    said.append(f"{name} in")
                    await leave.wait()
            except Busy as error:
                said.append(f"{name} out, {error.limit}")

        tasks = [asyncio.create_task(take(name)) for name in "abc"]
        for _ in range(5):
            await asyncio.sleep(0)
        leave.set()
        await asyncio.gather(*tasks)
        assert turns.waiting == 0
        return said

    assert asyncio.run(scenario()) == ["a in", "c out, {'name': 'REMAT_READ_QUEUE', 'value': 1}", "b in"]


def test_a_tenant_that_fills_the_queue_leaves_half_of_it_and_the_next_turn_to_others() -> None:
    async def scenario() -> tuple[list[str], int]:
        turns, order, refused = SlotPool(2, 8, 60, "REMAT_READ_QUEUE"), list[str](), 0
        leave = asyncio.Event()

        async def take(name: str) -> None:
            nonlocal refused
            try:
                async with turns.turn(name):
                    order.append(name)
                    await leave.wait()
            except Busy:
                refused += 1

        tasks = [asyncio.create_task(take(name)) for name in "aaaaaaaab"]
        await asyncio.sleep(0)
        gone = asyncio.create_task(take("c"))
        await asyncio.sleep(0)
        gone.cancel()
        leave.set()
        await asyncio.gather(*tasks)
        assert turns.waiting == 0
        return order, refused

    order, refused = asyncio.run(scenario())
    assert (order, refused) == (list("aabaaaa"), 2)


def test_a_document_is_loaded_in_its_turn_and_counted_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(Settings(data=tmp_path, workers=0, gc_hours=0, readers=1, spare_bytes=0))
    loaded, counted = list[str](), list[int]()

    def load() -> dict[str, Any]:
        loaded.append("a document")
        return {"data": bytes(1000), "before": [bytes(10)] * 16}

    async def run(task: str, payload: Any) -> None:
        counted.append(service.admission.bytes)

    async def scenario() -> None:
        async with service._reads.turn():
            waiting = [asyncio.create_task(service.run_in_child("analyse", load)) for _ in range(9)]
            await asyncio.sleep(0.01)
            assert loaded == []
        await asyncio.gather(*waiting)

    monkeypatch.setattr(service, "_run", run)
    asyncio.run(scenario())
    service.close()
    assert counted == [1160] * 9 and service.admission.bytes == 0


def test_who_waits_too_long_for_a_turn_is_told() -> None:
    async def scenario() -> None:
        turns = SlotPool(1, 9, 0.01, "REMAT_READ_QUEUE")
        async with turns.turn():
            with pytest.raises(Busy, match="no slot became free"):
                async with turns.turn():
                    pass
        async with turns.turn():  # the one that gave up has left the line
            pass

    asyncio.run(scenario())


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Port of a service that really listens, with the limits that a test names."""
    stopping = []

    def start(**limits: Any) -> int:
        settings = Settings(data=tmp_path, workers=1, drain_seconds=0, gc_hours=0, **limits)
        app = create_app(settings)
        server = uvicorn.Server(
            uvicorn.Config(
                app, http=limited_protocol(app.state.service.admission), ws="none", log_config=None, lifespan="on"
            )
        )
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        stopping.append((server, thread))
        port: int = listener.getsockname()[1]
        return port

    yield start
    for server, thread in stopping:
        server.should_exit = True
        thread.join(30)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def all_of(connection: socket.socket) -> bytes:
    """Everything until the other side ends, however it does."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


HEAD = b"POST /v1/graphs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


def test_a_body_that_does_not_come_is_told_so_and_its_connection_ends(listening: Any) -> None:
    with connected(listening(body_seconds=0.2, head_seconds=0.8)) as slow:
        slow.sendall(HEAD + b'{"format"')
        answer = all_of(slow)
    assert answer.startswith(b"HTTP/1.1 408") and b"REMAT_BODY_SECONDS" in answer
    assert b"application/problem+json" in answer


@pytest.mark.parametrize("head", [b"", b"GET /livez HTTP/1.1\r\nhost", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /l"])
def test_a_head_that_does_not_end_ends_its_connection(head: bytes, listening: Any) -> None:
    with connected(listening(head_seconds=0.8)) as slow:
        slow.sendall(head)
        answer = all_of(slow)
    assert answer.count(b"HTTP/1.1 200") == head.count(b"\r\n\r\n")


def test_a_body_that_was_refused_is_drained_for_a_while_only(listening: Any) -> None:
    with connected(listening(head_seconds=0.8, body_bytes=100)) as slow:
        slow.sendall(HEAD + b"x" * 500)  # and the rest never
        answer = all_of(slow)
    assert answer.startswith(b"HTTP/1.1 413") and b"REMAT_BODY_BYTES" in answer


def test_a_refused_body_that_comes_to_its_end_leaves_its_connection_of_use(listening: Any) -> None:
    with connected(listening(head_seconds=30, body_bytes=100)) as client:
        client.sendall(HEAD + b"x" * 1000 + b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = all_of(client)
    assert answer.startswith(b"HTTP/1.1 413") and b"HTTP/1.1 200" in answer


def test_connections_past_the_limit_close_the_one_that_waits_longest_for_a_request(listening: Any) -> None:
    port = listening(connections=2, head_seconds=60)
    with connected(port) as first, connected(port) as second, connected(port) as third:
        assert all_of(first) == b""
        for client in (second, third):
            client.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b"200 OK" in all_of(client)


def test_an_answer_that_nobody_takes_is_given_up(listening: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    monkeypatch.setattr("app.api.middleware.connection_limits.STALL_CHECK_S", 0.1)
    monkeypatch.setattr("app.api.middleware.connection_limits.metrics.count_refused", lambda limit: given_up.set())
    port = listening()
    document = json.dumps({**chain(1), "annotations": {"note": "x" * (8 << 20)}}).encode()
    with connected(port) as client:
        client.sendall(HEAD.replace(b"1000", b"%d\r\nconnection: close" % len(document)) + document)
        id = json.loads(all_of(client).partition(b"\r\n\r\n")[2])["id"].encode()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.sendall(b"GET /v1/graphs/" + id + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert given_up.wait(60)


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET / HTTP/9.9\r\nhost: x\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(5_000)) + b"\r\n",
        b"POST /v1/graphs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
        b"POST /v1/graphs HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/graphs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffffffff\r\n",
        b"POST /v1/graphs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nx: a\x00b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\n y: fold\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"POST /v1/graphs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nG",
    ],
    ids=lambda text: repr(text[:30]),
)
def test_what_is_no_request_is_refused_and_the_next_client_is_answered(request_text: bytes, listening: Any) -> None:
    port = listening(head_seconds=0.8, body_seconds=0.3)
    with connected(port) as strange:
        strange.sendall(request_text)
        answer = all_of(strange)
        assert not answer or 200 <= int(answer.split(b" ", 2)[1]) < 500, answer
    with connected(port) as bystander:
        bystander.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"200 OK" in all_of(bystander)
