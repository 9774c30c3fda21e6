"""The dashboard shows stored plans, filtered and sorted by the URL query."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.pages.fit_query import largest_batches
from app.pages.savings_query import SORTS, SavingsFilter, SavingsQuery
from app.settings import Settings
from app.store.store import Store
from app.store.tables import plans
from tests.app.pages.conftest import MARKUP
from tests.app.pages.html import parsed
from tests.app.pages.seeded import BUDGETS, PLANNERS, fill, fit


def rows(client: TestClient, query: str = "") -> list[dict[str, str]]:
    """Text of the cells of each row by the first word of their heading."""
    page = parsed(client.get(f"/{query}").text)
    names = [one.text.split()[0] for one in page.all("thead")[0].all("th")]
    cells = [[cell.text for cell in row.inside if not isinstance(cell, str)] for row in page.all("tbody")[0].all("tr")]
    return [dict(zip(names, row, strict=True)) for row in cells]


def lines(client: TestClient, query: str = "") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(client.get(f"/savings.csv{query}").text)))


def test_the_table_has_one_row_per_request(shown: TestClient) -> None:
    assert len(rows(shown)) == 3 * len(BUDGETS) * len(PLANNERS)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("?planner=auto", 15),
        ("?goal=50%25&planner=auto", 3),
        ("?model=STM", 20),
        ("?model=%25", 0),
        ("?model=<img", 20),
        ("?device=a100-80gb&runtime=torch-eager", 60),
        ("?from=2000-01-01&to=2000-01-02", 0),
    ],
)
def test_filters_leave_rows_out(shown: TestClient, query: str, count: int) -> None:
    assert len(lines(shown, query)) == count
    if count:
        assert len(rows(shown, query)) == count
    else:
        assert "No plans match" in shown.get(f"/{query}").text


def test_every_row_has_one_outcome(shown: TestClient) -> None:
    fits, over, proven = (lines(shown, f"?outcome={name}") for name in ("fits", "over", "proven"))
    assert fits and over and proven
    assert len(fits) + len(over) == 60
    assert {row["outcome"] for row in over} == {"over_budget"} and {row["outcome"] for row in proven} == {"proven"}
    assert {row["plan_id"] for row in proven} < {row["plan_id"] for row in fits}


@pytest.mark.parametrize("name", SORTS)
def test_rows_are_sorted_by_every_column_with_unknown_ones_last(shown: TestClient, name: str) -> None:
    found = [row[name] for row in lines(shown, f"?sort={name}&direction=asc")]
    known = [value for value in found if value]
    assert found == known + [""] * (len(found) - len(known))
    numbers = (
        [float(value) for value in known]
        if name not in ("model", "goal", "planner", "device", "outcome", "created_at")
        else known
    )
    assert numbers == sorted(numbers)  # type: ignore[type-var]
    back = [row[name] for row in lines(shown, f"?sort={name}&direction=desc") if row[name]]
    assert back == known[::-1]


def test_the_url_query_omits_defaults() -> None:
    assert SavingsFilter().query() == {}
    assert SavingsFilter(planner="auto", since="2026-01-01", page=2).query(page=1) == {
        "planner": "auto",
        "from": "2026-01-01",
    }


def test_days_are_of_the_time_zone_of_the_query(board_of: Store) -> None:
    at = "2026-03-29T21:30:00.000Z"  # 30 March in Paris, 29 March in UTC and New York
    with board_of.writing() as connection:
        connection.execute(sa.update(plans).values(created_at=at))
    board = SavingsQuery(board_of, None)

    def count(day: str, zone: str = "") -> int:
        return int(board.sums(SavingsFilter(since=day, until=day, zone=zone))["rows"])

    assert (count("2026-03-29"), count("2026-03-30")) == (40, 0)
    assert (count("2026-03-29", "America/New_York"), count("2026-03-30", "America/New_York")) == (40, 0)
    assert (count("2026-03-29", "Asia/Tokyo"), count("2026-03-30", "Asia/Tokyo")) == (0, 40)
    for day in ("0001-01-01", "9999-12-31"):  # beyond them there is no time
        for zone in ("Asia/Tokyo", "America/New_York"):
            assert count(day, zone) == 0
    assert board.sums(SavingsFilter(since="0001-01-01", until="9999-12-31", zone="Asia/Tokyo"))["rows"] == 40


def test_tags_are_shown_and_filter_rows(shown: TestClient) -> None:
    id = lines(shown, "?model=lstm&planner=auto&goal=50%25")[0]["plan_id"]
    tag = "<b>" + "x" * 37
    changed = shown.patch(f"/v1/plans/{id}", json={"tags": [tag, "prod"], "note": "<i>checked</i> " * 20})
    assert changed.status_code == 200
    (row,) = rows(shown, f"?tag={tag}")
    assert tag in row["Model"] and "prod" in row["Model"] and "<i>checked</i>" in row["Model"]
    assert [line["plan_id"] for line in lines(shown, "?tag=prod")] == [id]
    assert lines(shown, "?tag=other") == [] and sum(shown.get("/trends.json?tag=prod").json()["plans"]) == 1
    page = parsed(shown.get("/").text)
    (choice,) = [one for one in page.all("select") if one.attributes.get("name") == "tag"]
    assert [option.text for option in choice.all("option")] == ["all", tag, "prod"]
    (link,) = [one for one in page.all("a", class_="tag") if "prod" in one.text]
    assert link.attributes["href"] == "/?tag=prod"
    assert shown.patch(f"/v1/plans/{id}", json={"tags": [], "note": None}).status_code == 200


def test_a_row_has_batch_and_shape_of_its_plan(shown: TestClient) -> None:
    id = lines(shown, "?model=lstm&planner=auto&goal=50%25")[0]["plan_id"]
    store = shown.app.state.service.store  # type: ignore[attr-defined]
    inputs = [{"name": f"x{n}", "dtype": "float32", "shape": [16, 3, n]} for n in range(3)]
    with store.writing() as connection:
        connection.execute(sa.update(plans).where(plans.c.id == id).values(batch=16, inputs=inputs))
    (row,) = [row for row in rows(shown, "?model=lstm&planner=auto") if row["Budget"] == "50%"]
    assert row["Model"] == "lstm batch 16, float32[16,3,0], float32[16,3,1] and 1 more"
    assert {line["batch"] for line in lines(shown, "?model=lstm&planner=auto")} == {"16", ""}


def test_values_that_were_not_measured_say_so(shown: TestClient) -> None:
    found = rows(shown)
    ran = [row for row in found if row["Outcome"].endswith("bit-identical")]
    assert ran and all(row["Measured"] == row["Peak"].split()[0].removesuffix("was") for row in ran)
    assert all(row["Measured"] == "not measured" for row in found if row not in ran)


def test_columns_that_say_nothing_in_every_row_are_left_out(shown: TestClient) -> None:
    assert {"Planner", "Measured", "Checkpointing", "Largest"} <= rows(shown)[0].keys()
    assert "Device" not in rows(shown)[0]  # one device and runtime, named above the table
    assert "all on a100-80gb, torch-eager" in parsed(shown.get("/").text).text
    one = rows(shown, "?model=lstm&planner=greedy")[0]
    assert not {"Planner", "Device", "Largest"} & one.keys() and "Saved" in one


def test_the_largest_batch_is_on_its_card_and_in_its_rows(shown: TestClient) -> None:
    page = parsed(shown.get("/").text)
    (card,) = [one for one in page.all("div", class_="card") if one.text.startswith("Largest batch")]
    assert "4,800" in card.text and MARKUP in card.text and "by auto" in card.text
    cells = {(row["Model"], row["Planner"]): row["Largest"] for row in rows(shown)}
    assert cells[MARKUP, "auto"].startswith("4,800 in") and cells[MARKUP, "greedy"].endswith(", auto")
    assert cells["lstm", "auto"] == "not computed"
    assert {row["largest_batch"] for row in lines(shown, "?planner=auto")} == {"", "4800"}


def test_without_a_fit_the_card_shows_how_to_request_one(shown: TestClient) -> None:
    page = parsed(shown.get("/?model=lstm").text)
    (card,) = [one for one in page.all("div", class_="card") if one.text.startswith("Largest batch")]
    assert "not computed" in card.text and "/v1/fits" in card.text


def test_an_empty_store_shows_how_to_upload_a_model(empty: TestClient) -> None:
    page = parsed(empty.get("/").text)
    assert "No plans yet" in page.text
    assert [one for one in page.all("a") if one.attributes["href"] == "/upload" and one.above("main")]
    (button,) = [one for one in page.all("button") if "data-sample" in one.attributes]
    assert empty.get(button.attributes["data-sample"]).headers["content-type"] == "application/onnx"
    assert empty.get("/samples/resnet50.onnx").status_code == 404  # an export, which takes PyTorch
    assert empty.get("/trends.json").json()["day"] == []


def test_plans_by_day_add_up_to_all_plans(shown: TestClient) -> None:
    days = shown.get("/trends.json").json()
    assert sum(days["plans"]) == 60
    assert days["day"] == sorted(set(days["day"]))
    some = shown.get("/trends.json?planner=greedy").json()
    assert sum(some["plans"]) == 15


@pytest.mark.parametrize(
    "query",
    [
        "sort=secret",
        "from=soon",
        "from=2026-13-01",
        "to=2026-02-30",
        "page=0",
        "outcome=x",
        "colour=red",
        "zone=Nowhere/At_all",
    ],
)
def test_invalid_query_parameters_are_refused(shown: TestClient, query: str) -> None:
    assert shown.get(f"/?{query}").status_code == 422


@pytest.mark.parametrize(
    ("query", "fault"),
    [("from=abc", "query.from: found &#39;abc&#39;, expected a valid date"), ("page=0", "query.page: found")],
)
def test_a_wrong_filter_is_named_without_words_of_a_library(shown: TestClient, query: str, fault: str) -> None:
    page = shown.get(f"/?{query}").text
    assert fault in page and "Input should" not in page and "literal" not in page


@pytest.fixture
def board_of(store_settings: dict[str, Any], tmp_path: Path) -> Iterator[Store]:
    store = Store.open_for_serving(Settings(**store_settings))
    fill(store, 40, ("net", "other"))
    yield store
    store.close()


def test_sums_equal_the_sums_of_the_rows(board_of: Store) -> None:
    board = SavingsQuery(board_of, None)
    every, sums = board.rows(SavingsFilter(), 1000), board.sums(SavingsFilter())
    assert (sums["rows"], sums["models"]) == (40, 2)
    assert sums["fit"] == sum(row["outcome"] != "over_budget" for row in every)
    assert sums["saved_bytes"] == sum(row["saved_bytes"] for row in every)
    assert sums["seconds"] == pytest.approx(sum(row["seconds"] for row in every if row["outcome"] != "over_budget"))
    both = [
        row
        for row in every
        if row["planner"] != "segments"
        and row["outcome"] != "over_budget"
        and row["checkpointing_status"] not in (None, "over_budget")
    ]
    assert sums["compared"] == len(both)
    assert sums["checkpointing_seconds"] == pytest.approx(sum(row["checkpointing_seconds"] for row in both))
    assert [day["plans"] for day in board.by_day(SavingsFilter())]


def test_checkpointing_figures_are_those_of_the_same_request(board_of: Store) -> None:
    board = SavingsQuery(board_of, None)
    every = board.rows(SavingsFilter(), 1000)
    own = {(row["model"], row["goal"]): row for row in every if row["planner"] == "segments"}
    for row in every:
        same = own[row["model"], row["goal"]]
        assert (row["checkpointing_peak_bytes"], row["checkpointing_overhead"]) == (
            same["peak_bytes"],
            same["overhead"],
        )


def test_a_row_shows_the_best_plan_of_its_request(board_of: Store) -> None:
    with board_of.writing() as connection:
        first = dict(
            connection.execute(sa.select(plans).where(plans.c.status != "over_budget")).mappings().first() or {}
        )
        worse = first | {"id": "w" * 64, "overhead": first["overhead"] + 0.5, "peak_bytes": 1}
        over = first | {"id": "o" * 64, "status": "over_budget", "overhead": 0.0}
        connection.execute(sa.insert(plans), [worse, over])
    found = {row["plan_id"] for row in SavingsQuery(board_of, None).rows(SavingsFilter(), 1000)}
    assert len(found) == 40 and first["id"] in found


def test_largest_batches_are_joined_to_plans_of_the_same_model_and_device(board_of: Store) -> None:
    found = fit(board_of, "net", "auto", 48)
    for planner, size, grow in (
        ("auto", 40, "batch"),
        ("segments", 32, "batch"),
        ("auto", 4096, "sequence"),
        ("greedy", None, "batch"),
    ):
        fit(board_of, "net", planner, size, grow)
    every = largest_batches(board_of, None, SavingsFilter()).with_largest_batch(
        SavingsQuery(board_of, None).rows(SavingsFilter(), 1000)
    )
    sizes = {(row["model"], row["planner"]): row["largest_batch"] for row in every}
    assert {planner: sizes["net", planner] for planner in PLANNERS} == {
        "auto": 48,
        "blocks": 48,
        "segments": 32,
        "greedy": 48,
    }
    assert {sizes["other", planner] for planner in PLANNERS} == {None}
    assert {row["fit"]["plan_id"] for row in every if row["largest_batch"] == 48} == {found}
    for asked in (
        SavingsFilter(sort="largest_batch"),
        SavingsFilter(sort="largest_batch", planner="segments"),
        SavingsFilter(sort="largest_batch", direction="asc"),
    ):
        ordered = SavingsQuery(board_of, None).rows(asked, 1000)
        by_sql = [row["largest_batch"] for row in ordered]
        assert by_sql == [
            row["largest_batch"] for row in largest_batches(board_of, None, asked).with_largest_batch(ordered)
        ]
        known = [size for size in by_sql if size is not None]
        assert known == sorted(known, reverse=asked.direction == "desc") and None not in by_sql[: len(known)]
        assert len(set(known)) == (1 if asked.planner else 2)
    (largest,) = largest_batches(board_of, None, SavingsFilter(planner="segments")).largest()
    assert (largest["model"], largest["size"]) == ("net", 32)
    assert largest_batches(board_of, None, SavingsFilter(model="other")).largest() == []


def test_a_tenant_sees_only_its_own_plans(board_of: Store) -> None:
    fit(board_of, "net", "auto", 48)
    assert largest_batches(board_of, "another tenant", SavingsFilter()).largest() == []
    none = SavingsQuery(board_of, "another tenant")
    assert (
        none.rows(SavingsFilter(), 10) == [] and none.by_day(SavingsFilter()) == [] and not any(none.choices().values())
    )
    assert none.sums(SavingsFilter())["rows"] == 0
