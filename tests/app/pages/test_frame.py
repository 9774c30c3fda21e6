"""Every page comes in the frame, with headers that let nothing in from elsewhere; files are kept by their content."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from app.api.routes.dependencies import CACHE_FOREVER
from app.pages.assets import asset_files, asset_url

ELSEWHERE = re.compile(rb"""(?:https?:)?//[A-Za-z0-9-]+\.[A-Za-z]""")
#: Addresses in texts that nobody fetches: a name space, and the homes of vendored scripts.
NAMED = (b"http://www.w3.org/", b"https://github.com/leeoniya/uPlot")


def test_a_page_lets_nothing_in_from_elsewhere(client: TestClient) -> None:
    policy = client.get("/").headers["content-security-policy"]
    said = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert said["default-src"] == "'none'"
    assert said["frame-ancestors"] == "'none'"
    assert {name: said[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == dict.fromkeys(
        ("script-src", "style-src", "connect-src", "form-action"), "'self'"
    )
    assert "unsafe" not in policy


def test_every_file_that_is_served_names_no_other_host(client: TestClient) -> None:
    for name in asset_files():
        answer = client.get(asset_url(name))
        assert answer.status_code == 200, name
        text = answer.content
        for known in NAMED:
            text = text.replace(known, b"")
        assert not ELSEWHERE.search(text), name


def test_a_file_is_kept_for_good_under_the_address_of_its_content(client: TestClient) -> None:
    now = asset_url("css/remat.css")
    first = client.get(now)
    assert first.headers["cache-control"] == CACHE_FOREVER
    assert client.get(now, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    assert client.get("/assets/older/css/remat.css").headers["cache-control"] == "no-cache"


def test_only_listed_files_are_served(client: TestClient) -> None:
    for name in ("../frame.py", "..%2f..%2fcli.py", "vendor/htmx/origin.json", "nothing.js", ""):
        assert client.get(f"/assets/x/{name}").status_code == 404


def test_a_fault_of_a_page_is_a_page(client: TestClient) -> None:
    answer = client.get("/?%3Cscript%3Eit=1")
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text
    assert "query.&lt;script&gt;it" in answer.text
    assert "unknown_parameter" in answer.text


def test_a_page_comes_in_the_colours_that_were_chosen(client: TestClient) -> None:
    said = {chosen: client.get("/", headers={"Cookie": f"remat_theme={chosen}"}).text for chosen in ("dark", "<b>")}
    assert '<html lang="en" data-theme="dark">' in said["dark"]
    assert '<html lang="en">' in said["<b>"]
