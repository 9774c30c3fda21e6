"""The dashboard in Chromium: filters, sorting, links, charts, theme."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.app.api.routes.test_batches import broken
from tests.app.conftest import chain
from tests.browser.conftest import NARROW, PATIENCE_MS, Served, Watched

pytestmark = pytest.mark.browser


def test_filters_and_sorting_are_in_the_address(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = opened(f"{served.url}/").page
    rows = page.locator("table.savings tbody tr")
    expect(rows).to_have_count(60)
    page.get_by_label("Planner").select_option("auto")
    expect(rows).to_have_count(15)
    page.get_by_label("Model").fill("lstm")
    expect(rows).to_have_count(5)
    page.get_by_role("link", name="Saved").click()
    expect(page.get_by_role("columnheader", name=re.compile("Saved"))).to_have_attribute("aria-sort", "descending")
    shares = [float(text) for text in page.locator("table.savings tbody td.saved").all_inner_texts()]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True)
    expect(page).to_have_url(re.compile("model=lstm.*planner=auto.*sort=saved|sort=saved"))
    shared = opened(page.url).page
    expect(shared.locator("table.savings tbody tr")).to_have_count(5)
    expect(shared.get_by_label("Planner")).to_have_value("auto")


def test_filters_changed_while_an_answer_is_awaited_are_all_applied(
    served: Served, opened: Callable[..., Watched]
) -> None:
    from playwright.sync_api import expect

    page, held = opened(f"{served.url}/").page, list[Any]()
    page.route("**/?*", lambda route: route.continue_() if held else held.append(route))
    for name, value in (("planner", "auto"), ("goal", "50%"), ("outcome", "fits")):
        page.locator(f"select[name={name}]").select_option(value)
    page.get_by_role("link", name="Saved").click()
    expect(page.locator("[aria-sort]")).to_contain_text("Saved")
    held[0].continue_()  # nobody waits for the answer to the first change any more
    page.wait_for_load_state("networkidle")
    for part in ("planner=auto", "goal=50%25", "outcome=fits", "sort=saved"):
        assert part in page.url, page.url
    expect(page.locator("#offline")).to_be_hidden()


def test_picked_rows_are_compared(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    watched = opened(f"{served.url}/")
    page, boxes = watched.page, watched.page.locator("[data-pick]")
    expect(page.get_by_role("button", name="Compare plans")).to_be_disabled()
    ids = [boxes.nth(k).get_attribute("data-pick") for k in range(7)]
    for k in range(7):
        boxes.nth(k).check()
    assert [boxes.nth(k).is_checked() for k in range(7)] == [False] + 6 * [True]  # the last six
    watched.expect("status of")  # the rows have no reports
    page.get_by_role("button", name="Compare 6 plans").click()
    expect(page).to_have_url(re.compile("/compare.plan=" + "&plan=".join(map(str, ids[1:]))))


@pytest.mark.parametrize("size", [{"width": 1440, "height": 900}, NARROW], ids=["1440", "390"])
def test_the_table_fits_the_screen(served: Served, opened: Callable[..., Watched], size: dict[str, int]) -> None:
    page = opened(f"{served.url}/", size=size).page
    room = page.locator(".wide").first.evaluate("(box) => [box.scrollWidth, box.clientWidth]")
    assert room[0] <= room[1], room


def test_trends_follow_the_filters(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = opened(f"{served.url}/").page
    expect(page.locator("#plans-by-day")).to_have_attribute("aria-label", re.compile("60 in total"))
    page.get_by_label("Planner").select_option("greedy")
    expect(page.locator("#plans-by-day")).to_have_attribute("aria-label", re.compile("15 in total"))
    drawn = page.locator("#saved-by-day canvas").evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    )
    assert drawn


def test_the_csv_has_the_filtered_rows(served: Served, opened: Callable[..., Watched]) -> None:
    page = opened(f"{served.url}/?planner=auto").page
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert len(download.value.path().read_text().splitlines()) == 1 + 15


def test_filters_are_saved_and_deleted_with_the_keyboard(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = opened(f"{served.url}/").page
    place, name = page.locator("#saved-filters"), "<b>lstm</b> " + "x" * 48
    expect(place).to_be_hidden()
    page.get_by_label("Planner").select_option("auto")
    expect(page.locator("table.savings tbody tr")).to_have_count(15)
    page.get_by_label("Save these filters as").focus()
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    link = place.get_by_role("link", name=name)
    expect(link).to_have_attribute("href", "/?planner=auto")
    expect(link).to_have_attribute("aria-current", "true")
    page.goto(f"{served.url}/")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    place.get_by_role("link", name=name).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/.planner=auto$"))
    page.keyboard.press("Tab")
    place.get_by_role("button", name="Delete").focus()
    page.keyboard.press("Enter")
    expect(place.get_by_role("link")).to_have_count(0)
    expect(page.get_by_label("Model", exact=True)).to_be_focused()
    assert page.evaluate("localStorage.getItem('remat:saved-filters')") == "{}"


def test_damaged_saved_filters_are_left_out(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = opened(f"{served.url}/?planner=auto").page
    for stored, count in (("{", 0), ("null", 0), ('{"a": 1, "b": "planner=auto"}', 1), ("[]", 0)):
        page.evaluate("(stored) => localStorage.setItem('remat:saved-filters', stored)", stored)
        page.reload()
        expect(page.locator("#saved-filters form")).to_be_visible()
        expect(page.locator("#saved-filters li")).to_have_count(count)


def test_times_and_days_are_those_of_the_reader(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = opened(f"{served.url}/", timezone_id="Asia/Tokyo").page
    time = page.locator("tbody time").first
    at = str(time.get_attribute("datetime"))
    assert time.get_attribute("title") == f"{at[:19].replace('T', ' ')} UTC"
    local = page.evaluate("(at) => new Date(Date.parse(at) + 9 * 3600e3).toISOString()", at)
    assert time.inner_text() == local[:16].replace("T", " ")
    page.get_by_label("From").fill(local[:10])
    expect(page).to_have_url(re.compile("zone=Asia%2FTokyo"))
    expect(page.locator("tbody time").first).to_have_attribute("datetime", at)
    page.get_by_label("From").fill("")
    expect(page.locator("table.savings tbody tr")).to_have_count(60)
    expect(page).not_to_have_url(re.compile("zone=Asia"))


def test_markup_in_a_name_stays_text(served: Served, opened: Callable[..., Watched]) -> None:
    page = opened(f"{served.url}/?model=%3Cimg").page
    assert page.locator("main img").count() == 0
    assert page.locator("tbody a").first.inner_text() == '<img src=x onerror=alert(1)> & "net"'


def test_the_theme_is_that_of_the_system_until_one_is_selected(served: Served, opened: Callable[..., Watched]) -> None:
    page = opened(f"{served.url}/", color_scheme="dark").page
    ground = "() => getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_label("Theme").select_option("light")
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light


def test_a_keyboard_user_can_skip_to_the_content(served: Served, opened: Callable[..., Watched]) -> None:
    page = opened(f"{served.url}/").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_tables_of_jobs_and_batches_fold_on_a_narrow_screen(served: Served, opened: Callable[..., Watched]) -> None:
    with httpx2.Client(base_url=served.url, timeout=PATIENCE_MS / 1000) as client:
        ids = [client.post("/v1/graphs", json=graph).json()["id"] for graph in (chain(6, "a" * 60), broken())]
        asked = {"graph_ids": ids, "budgets": ["90%"], "planners": ["greedy"], "loss": "y"}
        batch = client.post("/v1/batches", json=asked).json()["id"]
        while not client.get(f"/v1/batches/{batch}").json()["ended_at"]:
            time.sleep(0.1)
    for path in ("/jobs", "/batches", f"/batches/{batch}"):
        page = opened(f"{served.url}{path}", NARROW).page
        room = page.locator(".wide").first.evaluate("(box) => [box.scrollWidth, box.clientWidth]")
        assert room[0] <= room[1], (path, room)
        assert page.get_by_text("all failed").first.is_visible()


@pytest.mark.parametrize("path", ["/", "/jobs", "/batches", "/upload", "/compare", "/nothing"])
def test_no_page_scrolls_sideways_on_a_narrow_screen(served: Served, opened: Callable[..., Watched], path: str) -> None:
    watched = opened(f"{served.url}{path}", NARROW)
    watched.expect("404")
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/?model=none", "/jobs", "/batches", "/upload", "/compare", "/nothing"])
def test_axe_finds_no_violation(served: Served, opened: Callable[..., Watched], path: str, colours: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    watched = opened(f"{served.url}{path}", color_scheme=colours)
    watched.expect("404")
    found = Axe().run(watched.page)
    assert not found.response["violations"], found.generate_report()
