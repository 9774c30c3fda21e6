"""Properties of every page: no inline scripts, accessible names, markup in names stays text."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.app.pages.conftest import MARKUP
from tests.app.pages.html import Element, parsed

PAGES = (
    "/",
    "/?planner=auto&outcome=fits",
    "/?model=none",
    "/jobs",
    "/jobs?state=failed",
    "/batches",
    "/upload",
    "/jobs/op0",
    "/?page=99",
    "/nothing/here",
)
PERSON = {"Accept": "text/html"}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, shown: TestClient) -> Element:
    answer = shown.get(request.param, headers=PERSON)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    return parsed(answer.text)


def test_a_page_has_no_inline_script_or_style_and_no_foreign_resource(page: Element) -> None:
    for one in page.all():
        assert "style" not in one.attributes and one.tag != "style"
        assert not [name for name in one.attributes if name.startswith("on")]
        for name in ("src", "href", "action", "hx-get", "hx-post"):
            place = one.attributes.get(name, "/")
            assert (place.startswith("/") and not place.startswith("//")) or place.startswith("#"), place
    assert all(script.attributes.get("src") and not script.inside for script in page.all("script"))


def test_a_page_is_accessible_by_keyboard_and_screen_reader(page: Element) -> None:
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    assert len(page.all("main")) == len(page.all("h1")) == 1
    assert page.all("a", class_="skip")[0].attributes["href"] == "#main"
    assert page.all(id="main") and page.all(role="status")
    assert page.all("nav")[0].attributes["aria-label"]
    ids = [one.attributes["id"] for one in page.all() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    assert not [one for one in page.all() if int(one.attributes.get("tabindex", 0)) > 0]
    targets = {one.attributes["for"] for one in page.all("label") if "for" in one.attributes}
    for one in [*page.all("input"), *page.all("select")]:
        hidden = one.attributes.get("type") == "hidden"
        assert hidden or one.above("label") or one.attributes.get("id") in targets, one
    assert all(one.text for one in [*page.all("button"), *page.all("a"), *page.all("h1"), *page.all("th")])
    for table in page.all("table"):
        assert all("scope" in one.attributes for one in table.all("th"))


def test_markup_in_a_name_stays_text(shown: TestClient) -> None:
    text = shown.get("/", headers=PERSON).text
    assert MARKUP not in text
    page = parsed(text)
    assert not page.all("img")
    assert MARKUP in [one.text for one in page.all("a")]


def test_an_unknown_path_is_a_page_for_browsers_and_a_problem_object_for_programs(shown: TestClient) -> None:
    for path in ("/jobs/op0", "/nothing"):
        answer = shown.get(path, headers=PERSON)
        assert answer.status_code == 404
        assert "not_found" in answer.text and '<a href="/jobs">jobs</a>' in answer.text
    assert shown.get("/nothing").json()["code"] == "not_found"
