"""Nobody passes the gate without a good key, and what passes is written down."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.websockets import WebSocketDisconnect

from app.api.auth.audit_log import AuditLog
from app.api.auth.key_store import AuditEntry, KeyStore
from app.api.auth.tenant_view import MAX_REFUSED_AUDITS
from app.api.wire.open_paths import OPEN_PATHS
from app.client.blocking import Client, ServiceProblem
from app.settings import Settings
from app.store.database import DATABASE_FILE
from app.store.store import Store
from tests.app.api.auth.conftest import Gated
from tests.app.clients import Recording
from tests.app.conftest import chain

Tenant = Callable[[str], dict[str, str]]


def told(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_every_path_but_those_about_the_service_itself_needs_a_key(gated: Gated, tenant: Tenant) -> None:
    document = gated.client.get("/openapi.json").json()
    for template, methods in document["paths"].items():
        path = re.sub(r"\{\w+\}", "x", template)
        for method in methods:
            answer = gated.client.request(method, path)
            if path in OPEN_PATHS:
                assert answer.status_code == 200, path
            else:
                assert told(answer) == (401, "no_key"), path
                assert answer.headers["www-authenticate"] == 'Bearer realm="remat"'
                assert answer.headers["content-type"] == "application/problem+json"
                assert gated.client.request(method, path, headers=tenant("a")).status_code != 401
    assert gated.client.get("/docs").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "//v1/operations",
        "/docs/../v1/operations",
        "/v1/operations/",
        "/docs/%2e%2e/v1/operations",
        "/V1/operations",
        "/livez/../v1/operations",
        "/v1/operations?path=/livez",
        "/openapi.json/v1/operations",
    ],
)
def test_no_spelling_of_a_path_leads_around_the_gate(path: str, gated: Gated) -> None:
    answer = gated.client.get(path, follow_redirects=False)
    assert answer.status_code in (401, 404)
    assert "operations" not in answer.json() or answer.json().get("status")


def test_a_guessed_key_is_told_as_one_that_never_was(gated: Gated) -> None:
    text = gated.key()["Authorization"].removeprefix("Bearer ")
    _, id, secret = text.split("_", 2)
    nearly = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    answers = [
        gated.client.get("/v1/operations", headers={"Authorization": f"Bearer {guess}"})
        for guess in (f"remat_{id}_{nearly}", f"remat_{'0' * 12}_{secret}", "remat", f"{id}:{secret}")
    ]
    assert {told(answer) for answer in answers} == {(401, "bad_key")}
    assert len({answer.text for answer in answers}) == 1
    assert gated.client.get("/v1/operations", headers={"Authorization": f"Bearer {text}"}).status_code == 200


def test_a_key_is_good_until_it_expires(gated: Gated) -> None:
    headers = gated.key(seconds=60)
    assert gated.client.get("/v1/operations", headers=headers).status_code == 200
    gated.clock.after += 60
    assert told(gated.client.get("/v1/operations", headers=headers)) == (401, "expired_key")


def test_a_key_revoked_by_another_process_opens_nothing_more(gated: Gated) -> None:
    headers = gated.key()
    assert gated.client.get("/v1/operations", headers=headers).status_code == 200
    id = headers["Authorization"].split("_")[1]
    KeyStore(Store(Settings(data=gated.folder))).revoke(id, gated.clock())
    assert told(gated.client.get("/v1/operations", headers=headers)) == (401, "revoked_key")
    assert id in gated.client.get("/v1/operations", headers=headers).json()["detail"]


def test_a_key_does_what_its_scopes_say_and_no_more(gated: Gated) -> None:
    reads, plans = (gated.key("scoped", frozenset({scope})) for scope in ("read", "plan"))
    for method, path in (("POST", "/v1/graphs"), ("POST", "/v1/plans"), ("POST", "/v1/operations/x:cancel")):
        answer = gated.client.request(method, path, json=chain(), headers=reads)
        assert told(answer) == (403, "out_of_scope")
        assert "plan" in answer.json()["detail"]
    assert gated.client.get("/v1/planners", headers=reads).status_code == 200
    assert told(gated.client.get("/v1/planners", headers=plans)) == (403, "out_of_scope")
    assert gated.client.post("/v1/graphs", json=chain(), headers=plans).status_code == 201


def test_sums_over_all_tenants_are_the_operators(gated: Gated, tenant: Tenant) -> None:
    gated.plan(tenant("a"), graph=chain(3, "a's own model"))
    for path in ("/v1/savings", "/v1/savings?group_by=model", "/v1/savings/"):
        assert "a's own model" in gated.client.get(path, headers=tenant("a")).text, path
        assert "a's own model" not in gated.client.get(path, headers=tenant("b")).text, path
    answer = gated.client.get("/v1/savings", headers=gated.key("operator", frozenset({"operator"})))
    assert "a's own model" in answer.text
    assert told(gated.client.get("/v1/savings", headers=gated.key("p", frozenset({"plan"})))) == (403, "out_of_scope")
    assert told(gated.client.get("/metrics", headers=tenant("a"))) == (403, "out_of_scope")
    assert told(gated.client.get("/v1/operations", headers=gated.key("o", frozenset({"operator"}))))[0] == 403


@pytest.mark.parametrize("scope", ["read", "plan", "operator"])
def test_a_key_of_any_scope_is_told_which_it_has(gated: Gated, scope: str) -> None:
    me = gated.client.get("/v1/me", headers=gated.key("me", frozenset({scope})))
    assert (me.status_code, me.json()["key"]["scopes"]) == (200, [scope])


def test_a_key_comes_in_one_authorization_header_and_nowhere_else(gated: Gated) -> None:
    headers = gated.key()
    text = headers["Authorization"].removeprefix("Bearer ")
    for games in (
        [("Authorization", f"Bearer {text}"), ("Authorization", f"Bearer {text}")],
        [("Authorization", "Bearer x"), ("Authorization", f"Bearer {text}")],
        [("Authorization", f"Basic {text}")],
        [("Authorization", text)],
        [("Authorization", f"Bearer {text}, Bearer {text}")],
        [("Authorization", f"Bearer {text}\u00e9".encode("latin-1"))],
        [("Authorization", "")],
    ):
        assert told(gated.client.get("/v1/operations", headers=games)) == (401, "bad_key"), games
    for games in (
        [("X-Api-Key", text)],
        [("Cookie", f"key={text}")],
        [("Proxy-Authorization", f"Bearer {text}")],
        [("X-Forwarded-For", "127.0.0.1"), ("Host", "localhost"), ("X-Forwarded-User", "a"), ("remat.caller", "a")],
    ):
        assert told(gated.client.get("/v1/operations", headers=games)) == (401, "no_key"), games
    assert told(gated.client.get(f"/v1/operations?key={text}")) == (401, "no_key")
    assert gated.client.get("/v1/operations", headers={"authorization": f"bearer  {text} "}).status_code == 200


def test_a_header_names_no_other_tenant(gated: Gated, tenant: Tenant) -> None:
    id = gated.client.post("/v1/graphs", json=chain(2, "named"), headers=tenant("a")).json()["id"]
    games = {"X-Remat-Tenant": "a", "X-Tenant": "a", "X-Forwarded-User": "a", "remat.caller": "a"}
    assert gated.client.get(f"/v1/graphs/{id}", headers=tenant("b") | games).status_code == 404


def test_no_shared_cache_keeps_what_a_key_opened(gated: Gated, tenant: Tenant) -> None:
    id = gated.client.post("/v1/graphs", json=chain(), headers=tenant("a")).json()["id"]
    answer = gated.client.get(f"/v1/graphs/{id}", headers=tenant("a"))
    assert "private" in answer.headers["cache-control"] and "public" not in answer.headers["cache-control"]
    assert "Authorization" in answer.headers["vary"]


def test_what_changes_something_or_is_refused_is_written_down_without_any_secret(gated: Gated) -> None:
    headers = gated.key("audited")
    id, secret = headers["Authorization"].removeprefix("Bearer remat_").split("_", 1)
    before = len(gated.access.key_store.entries(10**6))
    gated.client.post("/v1/graphs", json=chain(), headers=headers)
    gated.client.get("/v1/planners", headers=headers)
    gated.client.get("/v1/graphs/x", headers=headers)
    gated.client.get("/v1/planners")
    entries = gated.access.key_store.entries(10**6)
    written = entries[: len(entries) - before]
    assert [(entry.key_id, entry.tenant, entry.method, entry.path, entry.status) for entry in reversed(written)] == [
        (id, "audited", "POST", "/v1/graphs", 201),
        (id, "audited", "GET", "/v1/graphs/x", 404),
        (None, None, "GET", "/v1/planners", 401),
    ]
    kept = b"".join(path.read_bytes() for path in gated.folder.glob(f"{DATABASE_FILE}*"))
    assert secret.encode() not in kept


def test_who_knocks_again_and_again_does_not_fill_the_log(gated: Gated, tenant: Tenant) -> None:
    gated.clock.after += 60
    before = len(gated.access.key_store.entries(10**6))
    for _ in range(MAX_REFUSED_AUDITS + 20):
        assert gated.client.get("/v1/planners").status_code == 401
    assert len(gated.access.key_store.entries(10**6)) - before == MAX_REFUSED_AUDITS
    assert gated.client.get("/v1/graphs/x", headers=tenant("a")).status_code == 404  # who has a key is written down
    gated.clock.after += 60
    assert gated.client.get("/v1/planners").status_code == 401
    assert len(gated.access.key_store.entries(10**6)) - before == MAX_REFUSED_AUDITS + 2


def test_refused_requests_of_one_key_do_not_fill_the_log(gated: Gated) -> None:
    headers = gated.key("curious", scopes=frozenset({"read"}))
    gated.clock.after += 60
    before = len(gated.access.key_store.entries(10**6))
    for _ in range(MAX_REFUSED_AUDITS + 20):
        assert gated.client.get("/v1/graphs/x", headers=headers).status_code == 404
    assert len(gated.access.key_store.entries(10**6)) - before == MAX_REFUSED_AUDITS


def test_a_failed_login_is_written_down(gated: Gated) -> None:
    gated.clock.after += 60
    assert gated.client.post("/login", data={"key": "remat_000000000000_" + "x" * 43}).status_code == 401
    entry = gated.access.key_store.entries(1)[0]
    assert (entry.key_id, entry.method, entry.path, entry.status) == (None, "POST", "/login", 401)


def test_no_other_protocol_leads_around_the_gate(gated: Gated) -> None:
    with pytest.raises(WebSocketDisconnect) as told, gated.client.websocket_connect("/livez"):
        pass
    assert told.value.code == 1008


def test_an_idempotency_key_is_as_long_as_the_document_says(gated: Gated, tenant: Tenant) -> None:
    for length, status in ((255, 201), (256, 422)):
        said = tenant("a") | {"Idempotency-Key": "k" * length}
        assert gated.client.post("/v1/graphs", json=chain(2), headers=said).status_code == status


def test_the_client_brings_its_key(gated: Gated) -> None:
    text = gated.key("client")["Authorization"].removeprefix("Bearer ")
    wire = Recording(gated.client)
    with Client("http://service", text, transport=wire) as asking:
        assert asking.plan(chain(3), planner="greedy", iterations=5)["checked"]
        assert [operation["state"] for operation in asking.operations()] == ["succeeded"]
    with Client("http://service", "wrong", transport=wire) as asking, pytest.raises(ServiceProblem, match="bad_key"):
        asking.planners()


class Gate:
    """Holds writes to the audit log until it opens; counts their lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.opened, self.writes = threading.Event(), list[int]()
        record = KeyStore.record

        def held(store: KeyStore, *entries: AuditEntry) -> None:
            self.writes.append(len(entries))
            assert self.opened.wait(30)
            record(store, *entries)

        monkeypatch.setattr(KeyStore, "record", held)


def test_refusals_that_wait_for_the_audit_log_are_written_together(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.clock.after += 60
    gate, write, lines = Gate(monkeypatch), AuditLog.write, list[AuditEntry]()

    async def counted(log: AuditLog, line: AuditEntry) -> None:
        lines.append(line)
        await write(log, line)

    monkeypatch.setattr(AuditLog, "write", counted)
    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(gated.client.get, "/v1/operations") for _ in range(16)]
        until = time.monotonic() + 30
        while len(lines) < 16 and time.monotonic() < until:
            time.sleep(0.01)
        gate.opened.set()
        assert [answer.result().status_code for answer in answers] == [401] * 16
    assert sum(gate.writes) == 16 and len(gate.writes) <= 2


def test_refusals_that_are_not_written_wait_for_no_audit_log(
    gated: Gated, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated.clock.after += 60
    for _ in range(MAX_REFUSED_AUDITS):
        assert gated.client.get("/v1/operations").status_code == 401
    gate = Gate(monkeypatch)
    headers = tenant("a")
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(gated.client.post, "/v1/graphs", json=chain(), headers=headers)
        while not gate.writes:
            time.sleep(0.01)
        assert gated.client.get("/v1/operations").status_code == 401
        assert not change.done()
        gate.opened.set()
        assert change.result().status_code == 201
