"""Browsers get a session for a key: a cookie scripts cannot read, and a token that comes with every change."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from app.api.auth import sessions
from tests.app.api.auth.conftest import Gated
from tests.app.conftest import chain

PAGE = {"Accept": "text/html"}


@pytest.fixture
def browser(gated: Gated) -> Iterator[TestClient]:
    """A client with a jar of its own, which follows nothing by itself."""
    client = TestClient(gated.client.app, raise_server_exceptions=False, follow_redirects=False)
    yield client


def key_text(headers: dict[str, str]) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


def enter(browser: TestClient, headers: dict[str, str], next: str = "/jobs?state=failed") -> None:
    answer = browser.post("/login", data={"key": key_text(headers), "next": next})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == next


def token(browser: TestClient) -> str:
    return re.findall(r'<meta name="csrf" content="([0-9a-f]{64})">', browser.get("/", headers=PAGE).text)[0]


def test_a_page_without_a_session_leads_to_the_form_and_back(browser: TestClient) -> None:
    answer = browser.get("/?model=a%26b", headers=PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/%3Fmodel%3Da%2526b")
    form = browser.get(answer.headers["location"]).text
    assert 'value="/?model=a%26b"' in form


def test_a_part_of_a_page_leads_its_page_there(browser: TestClient) -> None:
    answer = browser.get("/", headers=PAGE | {"HX-Request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/login")


def test_programs_are_told_what_they_were_told_before(browser: TestClient) -> None:
    assert browser.get("/v1/operations", headers=PAGE).status_code == 401
    assert browser.get("/").json()["code"] == "no_key"


def test_a_key_opens_a_session_that_scripts_and_other_sites_cannot_use(gated: Gated, browser: TestClient) -> None:
    headers = gated.key()
    answer = browser.post("/login", data={"key": key_text(headers), "next": "/"})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "Secure" not in cookie
    assert key_text(headers) not in cookie
    page = browser.get("/", headers=PAGE)
    assert page.status_code == 200
    assert key_text(headers).split("_", 2)[2] not in page.text
    assert sessions.COOKIE not in page.text and browser.cookies[sessions.COOKIE] not in page.text
    assert browser.get("/v1/operations").status_code == 200


def test_a_change_needs_the_token_of_the_page(gated: Gated, browser: TestClient) -> None:
    enter(browser, gated.key())
    refused = browser.post("/v1/operations/op1:cancel")
    assert (refused.status_code, refused.json()["code"]) == (403, "bad_token")
    wrong = browser.post("/v1/operations/op1:cancel", headers={"X-CSRF-Token": "0" * 64})
    assert wrong.status_code == 403
    good = browser.post("/v1/operations/op1:cancel", headers={"X-CSRF-Token": token(browser)})
    assert good.status_code == 404  # let in, and there is no such operation


def test_scopes_of_the_key_are_those_of_the_session(gated: Gated, browser: TestClient) -> None:
    enter(browser, gated.key(scopes=frozenset({"read"})))
    answer = browser.post("/v1/operations/op1:cancel", headers={"X-CSRF-Token": token(browser)})
    assert answer.json()["code"] == "out_of_scope"


def test_a_session_ends_with_leaving_with_time_and_with_its_key(gated: Gated, browser: TestClient) -> None:
    headers = gated.key()
    enter(browser, headers)
    kept = browser.cookies[sessions.COOKIE]
    browser.post("/logout")
    browser.cookies.set(sessions.COOKIE, kept)
    assert browser.get("/v1/operations").json()["code"] == "no_session"
    browser.cookies.clear()

    enter(browser, headers)
    gated.clock.after += sessions.SESSION_S - 1
    assert browser.get("/v1/operations").status_code == 200
    gated.clock.after += 1
    assert browser.get("/v1/operations").json()["code"] == "no_session"
    browser.cookies.clear()

    enter(browser, headers)
    gated.access.key_store.revoke(key_text(headers).split("_")[1], gated.clock.after)
    assert browser.get("/v1/operations").json()["code"] == "revoked_key"


def test_a_session_does_not_outlive_its_key(gated: Gated, browser: TestClient) -> None:
    enter(browser, gated.key(seconds=5))
    gated.clock.after += 5
    assert browser.get("/v1/operations").status_code == 401


@pytest.mark.parametrize("given", ["", "remat_", "remat_000000000000_" + "A" * 43, "<script>"])
def test_what_is_no_key_opens_nothing(browser: TestClient, given: str) -> None:
    answer = browser.post("/login", data={"key": given})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "<script>alert" not in answer.text and 'role="alert"' in answer.text


@pytest.mark.parametrize("sent", [b"key=\xff", b"key=%ff", b"\x00", b"key"])
def test_what_is_no_form_opens_nothing(browser: TestClient, sent: bytes) -> None:
    assert browser.post("/login", content=sent).status_code == 401


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/a\n"])
def test_nobody_is_led_to_another_host(gated: Gated, browser: TestClient, next: str) -> None:
    answer = browser.post("/login", data={"key": key_text(gated.key()), "next": next})
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_forms_of_other_sites_are_not_taken(gated: Gated, browser: TestClient, headers: dict[str, str]) -> None:
    answer = browser.post("/login", data={"key": key_text(gated.key())}, headers=headers)
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_the_form_is_short(browser: TestClient) -> None:
    assert browser.post("/login", data={"key": "x" * 5000}).status_code == 413


def test_without_keys_there_is_nothing_to_ask_for(client: TestClient) -> None:
    answer = client.get("/login?next=/jobs", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


def test_pages_for_a_key_that_only_reads_have_no_buttons_that_would_be_refused(gated: Gated) -> None:
    writer, reader = gated.key("pages"), gated.key("pages", scopes=frozenset({"read"}))
    plan = gated.plan(writer, graph=chain(4), budget="90%").json()["id"]
    batch = {"graph_ids": [gated.client.get("/v1/graphs", headers=writer).json()["graphs"][0]["id"]]}
    made = gated.client.post("/v1/batches", json=batch, headers=writer).json()["id"]
    gated.client.post(f"/v1/batches/{made}:cancel", headers=writer)
    changes = 'id="upload"', "data-sample", "data-annotate", "request-curve", 'id="snapshot"', "data-retry-batch"
    shown: dict[str, set[str]] = {"writer": set(), "reader": set()}
    for path in ("/upload", "/jobs", f"/plans/{plan}", f"/batches/{made}"):
        for who, headers in (("writer", writer), ("reader", reader)):
            page = gated.client.get(path, headers=headers | PAGE)
            assert page.status_code == 200, page.text
            shown[who] |= {change for change in changes if change in page.text}
    assert not shown["reader"] and shown["writer"] >= set(changes[:5])
    refused = gated.client.get("/upload", headers=reader | PAGE).text
    assert "no scope <code>plan</code>" in refused and 'href="/login"' in refused
