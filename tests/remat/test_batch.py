"""Many plans in one call, whoever makes them; and a report as a notebook shows it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

import remat
from app.render.notebook_document import NotebookDocument
from graph.formats.native.writer import document
from tests.end_to_end.test_agreement import training_chain


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(document(training_chain())))
    return path


def test_rows_come_in_the_order_asked_with_their_reports(model: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        rows = remat.batch(model, ["90%", 1], planners=["greedy", "mirror"], executor=executor, iterations=20)
    asked = [("90%", "greedy"), ("90%", "mirror"), (1, "greedy"), (1, "mirror")]
    assert [(row["budget"], row["planner"]) for row in rows] == asked
    assert [row["state"] for row in rows] == ["succeeded", *["over_budget"] * 3]  # mirror keeps more
    alone = remat.plan(model, "90%", planner="greedy", iterations=20)
    assert rows[0]["report"]["plan"]["order"] == alone["plan"]["order"]
    assert remat.verify(rows[0]["report"])["valid"]


def test_what_cannot_be_asked_is_told_and_what_cannot_be_planned_is_a_row(model: Path, tmp_path: Path) -> None:
    with pytest.raises(remat.BadInput, match="nobody"):
        remat.batch(model, ["90%"], planners=["nobody"])
    with pytest.raises(ValueError, match="no models found"):
        remat.batch(tmp_path / "*.onnx", ["90%"])
    model.write_text("{}")
    with ThreadPoolExecutor(1) as executor:
        (row,) = remat.batch([model], ["90%"], executor=executor)
    assert row["state"] == "failed" and row["report"] is None and row["error"]["status"] < 500


def test_a_cancelled_batch_begins_nothing(model: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    assert remat.batch(model, ["90%"], cancel=cancel) == []


class Tags(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.seen: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)


def test_a_notebook_shows_the_answer_and_the_picture() -> None:
    report = remat.plan(training_chain(), budget="80%")
    shown = report._repr_html_()
    assert "fits" in shown and "bytes live" in shown
    assert Tags(shown).seen.count("svg") == 1


def test_a_notebook_shows_curves_and_fits_as_tables() -> None:
    graph = document(training_chain()) | {"name": "<img src=x>"}
    curve = remat.curve(json.dumps(graph).encode(), ["100%", "80%"], planner="greedy", iterations=3)
    shown = curve._repr_html_()  # type: ignore[attr-defined]
    tags = Tags(shown).seen
    assert (tags.count("svg"), tags.count("tr"), tags.count("img")) == (1, 3, 0) and "memory needed" in shown
    size = {"size": 1, "fits": False, "said": "<b>", "needed_bytes": 2048, "why": "not_found"}
    fit = {"format": "remat-fit/1", "model": None, "dimension": None, "grow": "batch", "size": None, "tried": [size]}
    shown = str(NotebookDocument({**fit, "budget_bytes": 1024, "max_overhead": 0.1})._repr_html_())
    assert "no batch fits 1.00 KiB" in shown and "2.00 KiB" in shown and "b" not in Tags(shown).seen
    assert NotebookDocument({"points": []})._repr_html_() is None


def test_names_in_a_notebook_are_text() -> None:
    graph = document(training_chain()) | {"name": "<img src=x onerror=alert(1)>"}
    report = remat.plan(json.dumps(graph).encode(), budget="80%", **{"return": ["plan"]})
    shown = report._repr_html_()
    assert "&lt;img" in shown
    assert {"img", "svg"}.isdisjoint(Tags(shown).seen)
