"""HTML report of a batch in Chromium, opened from its file without network: sorting, plans, accessibility."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.sweep.html_report import HtmlReport
from tests.app.sweep.conftest import report
from tests.app.sweep.test_html_report import EVIL, failed, row
from tests.browser.conftest import NARROW, WIDE, Watched

pytestmark = pytest.mark.browser


@pytest.fixture
def file(tmp_path: Path) -> str:
    """URL of a report with two plans, one plan over budget, and a failed model."""
    rows = [row("small", saved=0.1), row("large"), row(EVIL, "over_budget", saved=0.05), failed("broken")]
    path = tmp_path / "report.html"
    page = HtmlReport(lambda one: None if one["plan"] is None else report(one["model"]), len(rows))
    path.write_text(page.render(rows))
    return path.as_uri()


def test_the_report_works_offline_from_its_file(file: str, opened: Callable[..., Watched]) -> None:
    page = opened(file, offline=True).page
    names = page.locator("tbody th")
    assert names.all_inner_texts() == [f"{name}, batch 2" for name in ("large", "small", EVIL, "broken")]
    page.get_by_role("button", name="model").click()
    page.get_by_role("button", name="model").click()
    assert page.locator("th[aria-sort]").inner_text() == "model"
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), key=str.casefold)
    page.get_by_role("link", name="large, batch 2", exact=True).first.click()
    page.locator("#plan-0[open] svg").wait_for()
    box = page.locator("#plan-0 svg").first.bounding_box()
    assert box is not None and box["width"] > 200 and box["height"] > 50


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", NARROW)])
def test_axe_finds_no_violation(file: str, opened: Callable[..., Watched], scheme: str, size: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    watched = opened(file, size, offline=True, color_scheme=scheme, bypass_csp=True)  # axe is put into the page
    found = Axe().run(watched.page)
    assert found.violations_count == 0, found.generate_report()
