"""Savings are summed over groups and times, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.api.main import create_app
from app.jobs.interface import Operation
from app.pages.savings_query import SavingsFilter, SavingsQuery
from app.settings import Settings
from app.store import records
from app.store.savings import GROUPS, savings
from app.store.store import Store
from app.store.tables import plans
from tests.app.stores import GRAPH_ID, add, graph_read, solved


@pytest.fixture
def store(store_settings: dict[str, Any]) -> Iterator[Store]:
    """Four plans: two of `net` with greedy, on two days; one over budget with milp; one of another model."""
    made = Store.open_for_serving(Settings(**store_settings))
    other = records.save_graph(made, graph_read(b'{"name": "other, \\"quoted\\""}', 'other, "quoted"'))
    records.save_graph(made, graph_read())
    days = {
        records.save_plan(made, solved(1), GRAPH_ID): "2026-01-01T23:59:59.999Z",
        records.save_plan(made, solved(2, saved_bytes=30, saved=0.3, gap=None), GRAPH_ID): "2026-01-02T00:00:00.000Z",
        records.save_plan(made, solved(3, planner="milp", status="over_budget"), GRAPH_ID): "2026-01-02T12:00:00.000Z",
        records.save_plan(made, solved(4, budget="30%", status="proven"), other["id"]): "2026-01-03T00:00:00.000Z",
    }
    with made.writing() as connection:
        for id, at in days.items():
            connection.execute(sa.update(plans).where(plans.c.id == id).values(created_at=at))
    yield made
    made.close()


@pytest.fixture
def asked(store: Store, tmp_path: Path) -> Any:
    """The answer of a service over that store."""
    app = create_app(Settings(data=tmp_path / "other"))
    own, app.state.service.store = app.state.service.store, store
    client = TestClient(app, raise_server_exceptions=False)
    yield lambda **query: client.get("/v1/savings", params=query)
    app.state.service.store = own
    app.state.service.close()


def test_plans_are_summed_by_model(asked: Any) -> None:
    answer = asked().json()
    assert answer["group_by"] == ["model"]
    net, other = answer["rows"]
    assert (net["model"], net["plans"], net["proven"], net["over_budget"]) == ("net", 3, 0, 1)
    assert (net["saved_bytes"], net["baseline_peak_bytes"], net["solver_seconds"]) == (130, 300, 6.0)
    assert net["saved"] == pytest.approx(1.3 / 3) and net["gap"] == pytest.approx(0.05)
    assert (other["model"], other["proven"]) == ('other, "quoted"', 1)


def test_sums_of_bytes_may_exceed_what_a_column_holds(asked: Any, store: Store) -> None:
    with store.writing() as connection:
        connection.execute(sa.update(plans).values(baseline_peak_bytes=2**62, peak_bytes=2**61, saved_bytes=2**62))
    net = asked().json()["rows"][0]
    assert (net["plans"], net["baseline_peak_bytes"], net["peak_bytes"]) == (3, 3 * 2**62, 3 * 2**61)
    board = SavingsQuery(store, None)
    assert board.sums(SavingsFilter())["saved_bytes"] == 3 * 2**62
    assert [day["saved_bytes"] for day in board.by_day(SavingsFilter())] == [2**62, 2**63, 2**62]
    with store.reading() as connection:
        for by in GROUPS:
            sums = connection.execute(
                sa.text(f"SELECT SUM(baseline_peak_bytes), SUM(saved_bytes) FROM savings_by_{by}")
            )
            assert sums.one() == (2**64, 2**64), by


def test_groups_are_combined_in_the_order_they_are_named(asked: Any) -> None:
    rows = asked(group_by="day,planner,day").json()["rows"]
    assert [(row["day"], row["planner"], row["plans"]) for row in rows] == [
        ("2026-01-01", "greedy", 1),
        ("2026-01-02", "greedy", 1),
        ("2026-01-02", "milp", 1),
        ("2026-01-03", "greedy", 1),
    ]


@pytest.mark.parametrize(
    ("times", "plans"),
    [
        ({"from": "2026-01-02"}, 3),
        ({"to": "2026-01-02"}, 1),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-02T12:00:00Z"}, 1),
        ({"from": "2026-01-02T01:00:00+01:00", "to": "2026-01-03"}, 2),
        ({"from": "2027-01-01"}, 0),
        ({"from": "0001-01-01", "to": "9999-12-31"}, 4),
    ],
)
def test_a_range_of_time_has_its_start_and_not_its_end(asked: Any, times: dict[str, str], plans: int) -> None:
    assert sum(row["plans"] for row in asked(**times).json()["rows"]) == plans


def test_only_plans_that_are_owned_are_summed(store: Store) -> None:
    with store.reading() as connection:
        ids = dict(connection.execute(sa.select(plans.c.created_at, plans.c.id)).all())
    at, first = records.now(), ids["2026-01-01T23:59:59.999Z"]
    done = {"state": "succeeded", "ended_at": at}
    add(store, Operation("op1", "k", GRAPH_ID, {}, at, result=first, tenant="planner", **done))
    curve = {"document": {"points": [{}, {}]}, "plans": [solved(3, planner="milp", status="over_budget"), solved(1)]}
    found = records.save_result(store, "curve", curve, GRAPH_ID)
    add(store, Operation("op2", "l", GRAPH_ID, {}, at, "curve", found=found, tenant="curves", **done))

    def days(tenant: str) -> list[str]:
        return [row["day"] for row in savings(store, ["day"], None, None, tenant)]

    assert days("planner") == ["2026-01-01"]
    assert days("curves") == ["2026-01-01", "2026-01-02"]
    assert days("x\"'") == []


def test_csv_has_the_same_rows(asked: Any) -> None:
    answer = asked(group_by="model,budget", format="csv")
    assert answer.headers["content-type"].startswith("text/csv")
    read = list(csv.DictReader(io.StringIO(answer.text)))
    told = asked(group_by="model,budget").json()["rows"]
    assert read == [{name: "" if value is None else str(value) for name, value in row.items()} for row in told]
    assert [row["model"] for row in read] == ["net", 'other, "quoted"']


@pytest.mark.parametrize(
    "query",
    [
        {"group_by": "tenant"},
        {"group_by": ""},
        {"format": "xml"},
        {"from": "soon"},
        {"from": "5"},
        {"to": "2026-02-30"},
        {"to": "2026-01-01T24:00:01Z"},
        {"till": "2026-01-01"},
        {"from": "0001-01-01T00:00:00+10:00"},
    ],
)
def test_what_is_not_known_is_refused(asked: Any, query: dict[str, str]) -> None:
    assert asked(**query).status_code == 422


def test_more_groups_than_an_answer_holds_are_refused(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.savings.MAX_ROWS", 1)
    answer = asked()
    assert (answer.status_code, answer.json()["code"]) == (422, "too_many_rows")


@pytest.mark.parametrize(
    ("query", "remedy"), [({"group_by": "foo"}, "model, planner"), ({"from": "May"}, "2026-01-31T")]
)
def test_a_parameter_of_another_pattern_is_described(asked: Any, query: dict[str, str], remedy: str) -> None:
    answer = asked(**query)
    assert answer.status_code == 422 and remedy in answer.json()["errors"][0]["remedy"]
