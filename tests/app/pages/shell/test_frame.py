"""Frame of pages: security headers, error pages, assets cached by content."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from app.api.routes.dependencies import CACHE_FOREVER
from app.pages.shell.assets import asset_files, asset_url

ELSEWHERE = re.compile(rb"""(?:https?:)?//[A-Za-z0-9-]+\.[A-Za-z]""")
#: Addresses in texts that nobody fetches: a name space, and the homes of vendored scripts.
NAMED = (b"http://www.w3.org/", b"https://github.com/leeoniya/uPlot")


def test_the_content_security_policy_allows_own_resources_only(client: TestClient) -> None:
    policy = client.get("/").headers["content-security-policy"]
    said = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert said["default-src"] == "'none'"
    assert said["frame-ancestors"] == "'none'"
    assert {name: said[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == dict.fromkeys(
        ("script-src", "style-src", "connect-src", "form-action"), "'self'"
    )
    assert "unsafe" not in policy


def test_no_asset_names_another_host(client: TestClient) -> None:
    for name in asset_files():
        answer = client.get(asset_url(name))
        assert answer.status_code == 200, name
        text = answer.content
        for known in NAMED:
            text = text.replace(known, b"")
        assert not ELSEWHERE.search(text), name


def test_an_asset_is_cached_forever_under_its_content_hash(client: TestClient) -> None:
    now = asset_url("css/remat.css")
    first = client.get(now)
    assert first.headers["cache-control"] == CACHE_FOREVER
    assert client.get(now, headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    assert client.get("/assets/older/css/remat.css").headers["cache-control"] == "no-cache"


def test_only_known_assets_are_served(client: TestClient) -> None:
    for name in ("../frame.py", "..%2f..%2fcli.py", "vendor/htmx/origin.json", "nothing.js", ""):
        assert client.get(f"/assets/x/{name}").status_code == 404


def test_an_error_of_a_page_is_a_page(client: TestClient) -> None:
    answer = client.get("/?%3Cscript%3Eit=1")
    assert answer.status_code == 422
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text
    assert "query.&lt;script&gt;it" in answer.text
    assert "unknown_parameter" in answer.text


def test_a_page_is_rendered_in_the_theme_of_the_cookie(client: TestClient) -> None:
    said = {chosen: client.get("/", headers={"Cookie": f"remat_theme={chosen}"}).text for chosen in ("dark", "<b>")}
    assert '<html lang="en" data-theme="dark">' in said["dark"]
    assert '<html lang="en">' in said["<b>"]
