"""The page of a batch: whole in one file, and what names say is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from app.sweep import table
from app.sweep.html_report import HtmlReport
from app.sweep.results import Row
from app.sweep.run import EMPTY_SUMMARY, summary_columns
from tests.app.sweep.conftest import report

EVIL = '</script><img src=x onerror=alert(1)>&"'


def row(name: str = "one", state: str = "succeeded", **said: Any) -> dict[str, Any]:
    key = {"key": name, "model": name, "batch": 2, "budget": "60%", "planner": "greedy", "seed": 0, "error": None}
    return {
        **key,
        **summary_columns(report(name)),
        "state": state,
        "plan": f"plans/{name}.json",
        "seconds": 0.5,
        **said,
    }


def failed(name: str) -> dict[str, Any]:
    error = {"code": "bad_graph", "title": "The model breaks a rule", "detail": EVIL, "status": 422}
    return row(name, "failed", **EMPTY_SUMMARY, error=error) | {"plan": None}


def page(rows: list[dict[str, Any]], asked: int | None = None) -> str:
    requested = len(rows) if asked is None else asked
    return HtmlReport(lambda row: None if row["plan"] is None else report(row["model"]), requested).render(rows)


class Seen(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def test_names_and_errors_are_text() -> None:
    text = page([row(EVIL), failed("two")])
    seen = Seen(text)
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert len([tag for tag, _ in seen.tags if tag == "script"]) == 1
    assert "onerror" in text and not seen.attributes("onerror")


def test_the_page_asks_for_nothing() -> None:
    seen = Seen(page([row()]))
    assert not seen.attributes("src")
    assert all(link.startswith(("#", "data:")) for link in seen.attributes("href"))
    assert "url(" not in page([row()])
    policy = next(attrs["content"] for _, attrs in seen.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy and policy.startswith("default-src 'none'") and "unsafe-inline'; script" in policy


def test_the_policy_allows_the_script_that_is_there() -> None:
    import base64
    import hashlib

    text = page([row()])
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in text


def test_ids_are_each_of_one_thing_and_links_lead_somewhere() -> None:
    seen = Seen(page([row(), row(key="other"), failed("two")]))
    ids = seen.attributes("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in seen.attributes("href") if link.startswith("#")} <= set(ids)
    labels = [id for label in seen.attributes("aria-labelledby") for id in label.split()]
    assert labels and set(labels) <= set(ids)


def test_the_largest_saving_stands_first_and_failures_last() -> None:
    text = page([failed("c"), row("a", saved=0.1), row("b", saved=0.3)])
    assert re.findall(r'<th scope="row"><a href="#plan-(\d)">(\w), batch 2</a>', text) == [
        ("0", "b"),
        ("1", "a"),
        ("2", "c"),
    ]


def test_a_model_has_one_row_with_a_cell_per_budget() -> None:
    rows = [
        row("a", key="a-60"),
        row("a", key="a-30", budget="30%", peak_bytes=300, overhead=0.25),
        row("b", "over_budget", key="b-60"),
    ]
    text = page(rows)
    assert text.count('<th scope="row">') == 2
    heads = re.findall(r'<th scope="col"><button type="button">(.*?)</button>', text)
    assert heads == ["model", "before", "60%", "30%"]
    assert re.findall(r"--after: (\d+)%", text) == ["60", "30", "60"]
    assert re.findall(r'data-sort="(\S*)"', text) == ["1000", "0.1", "0.25", "1000", "", ""]
    assert text.count("over budget</span>") == 1  # and no overhead for a plan that misses its budget


def test_planner_and_seed_are_named_where_there_are_several() -> None:
    text = page([row("a", key="1"), row("a", key="2", seed=1)])
    assert "a, batch 2, seed 0" in text and "a, batch 2, seed 1" in text
    assert "a, batch 2, greedy" not in text


def test_every_picture_is_open_and_one_chart_has_every_plan_within_its_budget() -> None:
    text = page([row("a"), row("b", "over_budget", key="b"), failed("c")])
    assert len(re.findall(r'<details id="plan-\d" open>', text)) == 3
    chart = text.partition("<figure>")[2].partition("</figure>")[0]
    assert re.findall(r"<circle[^>]*><title>(.*?)</title>", chart) == ["a, batch 2, 60%: 600 B, 10.0% slower"]


def test_a_page_that_grows_reads_each_report_once() -> None:
    read: list[str] = []

    def once(one: Row) -> dict[str, Any]:
        read.append(one["key"])
        return report(one["model"])

    growing, rows = HtmlReport(once, 3), [row("a")]
    assert "2 not finished" in growing.render(rows)
    rows.append(row("b"))
    assert "1 not finished" in growing.render(rows)
    rows[0] = row("a")  # planned again
    growing.render(rows)
    assert read == ["a", "b", "a"]


def test_a_page_without_plans_says_what_to_do() -> None:
    assert "--resume" in page([], asked=4)
    assert "3 not finished" in page([row()], asked=4)


def test_a_page_is_closed_as_it_was_opened() -> None:
    class Nested(HTMLParser):
        open: list[str]

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag not in ("meta", "link"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    nested = Nested()
    nested.open = []
    nested.feed(page([row(), failed("two")]))
    assert not nested.open


def test_a_table_and_csv_have_every_row(tmp_path: Path) -> None:
    rows = [row("=1+1"), failed("two"), row("three", "over_budget")]
    lines = table.table_lines(rows)
    assert lines[-1] == "3 plans: 1 within budget, 1 over budget, 1 failed"
    assert lines[3].endswith("failed: bad_graph")
    text = table.as_csv(rows).splitlines()
    assert len(text) == 4 and "'=1+1" in text[1]
    assert table.as_csv([]).strip() == "error"


def test_exit_codes_are_those_of_the_worst_row() -> None:
    ours = failed("x") | {"error": {"status": 500}}
    assert table.exit_code([]) == table.exit_code([row()]) == 0
    assert table.exit_code([row(), row("b", "over_budget")]) == 1
    assert table.exit_code([row(), row("b", "over_budget"), failed("c")]) == 2
    assert table.exit_code([ours, failed("c")]) == 4
