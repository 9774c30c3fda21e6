"""What a client does when nobody answers, or not yet: sent again, resumed, or told in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from app.client.blocking import Client, OperationCancelled, OperationFailed, ServiceProblem, TimedOut, Unreachable
from app.client.transport import BlockingTransport, retry_after
from tests.app.conftest import chain

REPORT = {"format": "remat-report/1", "id": "a"}
Reply = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


def problem(status: int, code: str = "busy", **headers: str) -> httpx2.Response:
    finding = {"code": code, "path": "nodes[4].inputs[0]", "found": "x", "expected": "y", "remedy": "name y"}
    body = {"status": status, "code": code, "title": "No", "detail": "no", "errors": [finding], "limit": None}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, json=body, headers=named)


def operation(state: str = "running", **fields: Any) -> dict[str, Any]:
    return {"id": "op1", "state": state, "result": None, "error": None, **fields}


def event(id: int, name: str, data: dict[str, Any]) -> bytes:
    return f"id: {id}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


class Broken(httpx2.SyncByteStream):
    """A body that breaks off after its pieces."""

    def __init__(self, *pieces: bytes):
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        raise httpx2.ReadError("connection reset")


def streamed(body: bytes | Broken) -> httpx2.Response:
    headers = {"content-type": "text/event-stream"}
    if isinstance(body, bytes):
        return httpx2.Response(200, content=body, headers=headers)
    return httpx2.Response(200, stream=body, headers=headers)


class Script:
    """A service that answers what it was told to, in turn, and remembers what it was asked."""

    def __init__(self, *replies: Reply):
        self.replies, self.asked = list(replies), list[httpx2.Request]()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.asked.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx2.Response) else reply(request)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that clients would have waited."""
    told: list[float] = []

    async def pause(self: BlockingTransport, seconds: float) -> None:
        told.append(seconds)

    monkeypatch.setattr(BlockingTransport, "pause", pause)
    return told


def client(script: Script, **options: Any) -> Client:
    return Client("http://service", transport=httpx2.MockTransport(script), **options)


def test_a_busy_service_is_asked_again_no_sooner_than_it_says_and_under_the_same_key(pauses: list[float]) -> None:
    script = Script(problem(429, Retry_After="7"), problem(503), httpx2.Response(201, json=REPORT))
    assert client(script).plan(chain()) == REPORT
    assert pauses[0] >= 7
    keys = {request.headers["idempotency-key"] for request in script.asked}
    bodies = {request.content for request in script.asked}
    assert (len(script.asked), len(keys), len(bodies)) == (3, 1, 1)


def test_two_questions_have_two_keys(pauses: list[float]) -> None:
    script = Script(httpx2.Response(201, json=REPORT), httpx2.Response(201, json=REPORT))
    asking = client(script)
    asking.plan(chain())
    asking.plan(chain())
    assert len({request.headers["idempotency-key"] for request in script.asked}) == 2


@pytest.mark.parametrize(
    "error", [httpx2.ConnectError("refused"), httpx2.ReadTimeout("slow"), httpx2.RemoteProtocolError("cut")]
)
def test_a_broken_connection_is_tried_again_ever_more_slowly(error: Exception, pauses: list[float]) -> None:
    script = Script(*[error] * 4, httpx2.Response(201, json=REPORT))
    assert client(script, retries=4).plan(chain()) == REPORT
    assert len({request.headers["idempotency-key"] for request in script.asked}) == 1
    assert all(0.25 * 2**n <= seconds <= 0.5 * 2**n for n, seconds in enumerate(pauses))


def test_who_never_answers_is_unreachable(pauses: list[float]) -> None:
    script = Script(*[httpx2.ConnectError("refused")] * 3)
    with pytest.raises(Unreachable, match=r"GET /version: no response in 3 tries; last error: refused"):
        client(script, retries=2).version()


def test_an_unreachable_service_is_named_by_its_address_without_a_password() -> None:
    with pytest.raises(Unreachable, match=r"in 1 try; .*; check that the service runs at http://127.0.0.1:1$"):
        Client("http://me:secret@127.0.0.1:1", retries=0).version()


def test_what_is_wrong_is_not_asked_again_and_names_code_path_and_remedy(pauses: list[float]) -> None:
    script = Script(problem(422, "undefined_value"))
    with pytest.raises(ServiceProblem) as told:
        client(script).plan(chain())
    assert (told.value.status, told.value.code) == (422, "undefined_value")
    assert (told.value.findings[0].path, told.value.findings[0].remedy) == ("nodes[4].inputs[0]", "name y")
    for word in ("undefined_value", "nodes[4].inputs[0]", "name y"):
        assert word in str(told.value)
    assert (len(script.asked), pauses) == (1, [])


@pytest.mark.parametrize(
    ("ask", "place"),
    [
        (lambda asking, **how: asking.curve(chain(), ["50%"], **how), "/v1/curves"),
        (lambda asking, **how: asking.fit(chain(), budget="8GiB", **how), "/v1/fits"),
        (lambda asking, **how: asking.pack([{"lower": 0, "upper": 1, "size": 8}], **how), "/v1/layouts"),
    ],
    ids=["curve", "fit", "layout"],
)
def test_every_question_is_put_once_and_waited_for(ask: Any, place: str, pauses: list[float]) -> None:
    found = {"warnings": ["as asked"]}
    script = Script(
        httpx2.ReadTimeout("slow"),
        httpx2.Response(202, json=operation("queued")),
        httpx2.Response(200, json=operation("succeeded", result=f"{place}/r")),
        httpx2.Response(200, json=found),
    )
    told: list[Any] = []
    assert ask(client(script), timeout=60, on_progress=told.append) == found
    first, again, *_, last = script.asked
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    assert (first.url.path, last.url.path, len(told)) == (place, f"{place}/r", 1)


def test_who_was_cancelled_has_the_best_so_far(pauses: list[float]) -> None:
    ended = operation("cancelled", result="/v1/curves/r")
    script = Script(
        httpx2.Response(202, json=operation()), httpx2.Response(200, json=ended), httpx2.Response(200, json=REPORT)
    )
    with pytest.raises(OperationCancelled) as told:
        client(script).curve(chain(), ["50%"])
    assert (told.value.operation, told.value.best) == ("op1", REPORT)


def test_a_proxy_that_answers_in_its_own_words_is_told(pauses: list[float]) -> None:
    script = Script(*[httpx2.Response(502, text="<h1>Bad Gateway</h1>")] * 2)
    with pytest.raises(ServiceProblem, match="Bad Gateway") as told:
        client(script, retries=1).version()
    assert (told.value.status, told.value.code) == (502, "no_problem")


def test_who_is_told_to_come_back_tomorrow_is_told_so(pauses: list[float]) -> None:
    script = Script(problem(429, Retry_After="86400"))
    with pytest.raises(ServiceProblem, match="busy"):
        client(script).version()
    assert pauses == []


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after({"retry-after": "12"}) == 12
    assert retry_after({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}) == 0
    later = retry_after({"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"})
    assert later is not None and later > 1e9
    assert retry_after({}) is retry_after({"retry-after": "soon"}) is None


def test_an_operation_is_followed_to_its_plan(pauses: list[float]) -> None:
    script = Script(
        httpx2.Response(202, json=operation("queued")),
        httpx2.Response(200, json=operation(), headers={"Retry-After": "3"}),
        httpx2.Response(200, json=operation()),
        httpx2.Response(200, json=operation("succeeded", result="/v1/plans/p")),
        httpx2.Response(200, json=REPORT),
    )
    told: list[Any] = []
    report = client(script).plan(chain(), on_progress=told.append, **{"return": ["plan", "graph"]})
    assert report == REPORT
    assert [seen["state"] for seen in told] == ["running", "succeeded"]
    assert str(script.asked[-1].url) == "http://service/v1/plans/p?return=plan&return=graph"
    assert pauses == [3, 1]


def test_who_waits_no_longer_learns_what_goes_on(pauses: list[float]) -> None:
    script = Script(httpx2.Response(202, json=operation()), httpx2.Response(200, json=operation()))
    with pytest.raises(TimedOut, match="op1 is still running") as told:
        client(script).plan(chain(), timeout=0)
    assert told.value.operation == "op1"
    assert script.asked[0].headers["prefer"] == "wait=0"


def test_a_failed_operation_is_its_problem(pauses: list[float]) -> None:
    said = problem(500, "out_of_memory").json()
    script = Script(httpx2.Response(202, json=operation()), httpx2.Response(200, json=operation("failed", error=said)))
    with pytest.raises(OperationFailed, match="out_of_memory") as told:
        client(script).plan(chain())
    assert told.value.operation == "op1"


def test_a_broken_stream_goes_on_behind_the_last_event_seen(pauses: list[float]) -> None:
    first, second = event(1, "state", operation()), event(2, "progress", {"stage": "plan"})
    last = event(3, "state", operation("succeeded"))
    script = Script(streamed(Broken(first + second[:9], second[9:] + last[:20])), streamed(last))
    seen = [(said.id, said.event) for said in client(script).events("op1")]
    assert seen == [("1", "state"), ("2", "progress"), ("3", "state")]
    assert [request.headers.get("last-event-id") for request in script.asked] == [None, "2"]


def test_a_stream_that_a_draining_service_ends_is_taken_up_again(pauses: list[float]) -> None:
    script = Script(
        streamed(event(1, "state", operation())),
        httpx2.Response(200, json=operation()),
        problem(503, Retry_After="5"),
        httpx2.Response(200, json=operation()),
        streamed(event(2, "state", operation("cancelled"))),
    )
    assert [said.data["state"] for said in client(script).events("op1")] == ["running", "cancelled"]
    assert len(pauses) == 2 and pauses[1] >= 5


def test_an_operation_that_ended_while_nobody_listened_is_told_by_its_state(pauses: list[float]) -> None:
    script = Script(httpx2.Response(204), httpx2.Response(200, json=operation("succeeded")))
    assert [said.data["state"] for said in client(script).events("op1", "9")] == ["succeeded"]
    assert script.asked[0].headers["last-event-id"] == "9"


def test_a_stream_that_never_comes_to_an_end_is_given_up(pauses: list[float]) -> None:
    script = Script(*[streamed(b": still there\n\n"), httpx2.Response(200, json=operation())] * 3)
    with pytest.raises(Unreachable, match="3 event streams ended"):
        list(client(script, retries=2).events("op1"))


def test_pages_are_fetched_as_they_are_needed() -> None:
    first = {"operations": [{"id": "op3"}, {"id": "op2"}], "next": "op2"}
    script = Script(httpx2.Response(200, json=first), httpx2.Response(200, json={"operations": [], "next": None}))
    found = client(script).operations(state="failed", page=2)
    assert [next(found)["id"], next(found)["id"]] == ["op3", "op2"]
    assert len(script.asked) == 1
    assert list(found) == []
    assert [str(request.url.query, "ascii") for request in script.asked] == [
        "limit=2&state=failed",
        "limit=2&state=failed&cursor=op2",
    ]


def test_the_key_is_an_argument_or_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_API_KEY", "from-outside")
    monkeypatch.setenv("REMAT_URL", "http://elsewhere")
    script = Script(httpx2.Response(200, json={}), httpx2.Response(200, json={}))
    Client(transport=httpx2.MockTransport(script)).version()
    Client("http://service", "given", transport=httpx2.MockTransport(script)).version()
    assert [request.headers["authorization"] for request in script.asked] == ["Bearer from-outside", "Bearer given"]
    assert script.asked[0].url.host == "elsewhere"


def test_an_id_never_becomes_another_path() -> None:
    script = Script(httpx2.Response(200, json={}))
    client(script).operation("../plans/x?y#z")
    assert script.asked[0].url.raw_path == b"/v1/operations/..%2Fplans%2Fx%3Fy%23z"
