"""The dashboard names models whose peak grew, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.api.main import create_app
from app.pages.peak_growth import grown_peaks
from app.pages.savings_query import SavingsFilter
from app.settings import Settings
from app.store import records
from app.store.store import Store
from app.store.tables import graphs, plans
from tests.app.api.auth.conftest import Gated, gated, tenant
from tests.app.conftest import chain
from tests.app.pages.html import parsed
from tests.app.stores import graph_read, solved

__all__ = ["gated", "tenant"]


@pytest.fixture
def store(store_settings: dict[str, Any]) -> Iterator[Store]:
    made = Store.open_for_serving(Settings(**store_settings))
    yield made
    made.close()


class Posting:
    """Posts versions of models and stores their plans, each a second after the one before."""

    def __init__(self, store: Store):
        self.store, self.seconds = store, 0

    def __call__(
        self,
        baseline: int,
        peak: int = 50,
        *,
        name: str = "net",
        batch: int = 4,
        version: str = "",
        planner: str = "greedy",
        curve: bool = False,
        **request: Any,
    ) -> str:
        """Id of the plan, or of a curve with it; a version is posted again if it is known."""
        self.seconds += 1
        at = f"2026-01-01T00:00:{self.seconds:02d}.000Z"
        document = json.dumps([name, batch, version or baseline]).encode()
        inputs = [{"name": "x", "dtype": "float32", "shape": [batch, 8]}]
        read = graph_read(document, name) | {"batch": batch, "inputs": inputs}
        graph_id = records.save_graph(self.store, read)["id"]
        made = solved(f"{baseline}", planner=planner, peak_bytes=peak)
        report = json.loads(made["report"])
        report["model"] |= {"batch": batch, "inputs": inputs}
        report["baseline"]["peak_bytes"] = baseline
        report["request"] |= request
        made |= {"report": json.dumps(report).encode()}
        if curve:
            curve_of = {"document": {"points": [{}]}, "plans": [made]}
            id = records.save_result(self.store, "curve", curve_of, graph_id)
        else:
            id = records.save_plan(self.store, made, graph_id)
        with self.store.writing() as connection:
            connection.execute(sa.update(graphs).where(graphs.c.id == graph_id).values(seen_at=at))
            connection.execute(sa.update(plans).where(plans.c.id == id).values(created_at=at))
        return id


@pytest.fixture
def post(store: Store) -> Posting:
    return Posting(store)


def found(store: Store, **filters: Any) -> list[tuple[str, int, int]]:
    """(model, peak before, peak after) of what grew."""
    grown = grown_peaks(store, None, SavingsFilter(**filters))
    return [(each.model, each.before_bytes, each.after_bytes) for each in grown]


def test_a_version_with_a_higher_peak_is_named_with_both_plans(store: Store, post: Posting) -> None:
    before = post(100)
    assert found(store) == []
    after = post(120)
    (grown,) = grown_peaks(store, None, SavingsFilter())
    assert (grown.before_id, grown.after_id, grown.is_baseline) == (before, after, True)
    assert (grown.before_bytes, grown.after_bytes, grown.growth) == (100, 120, pytest.approx(0.2))
    post(110)
    assert found(store) == []  # the newest is smaller than the one before


def test_a_plan_with_a_higher_peak_is_named_where_the_baseline_is_the_same(store: Store, post: Posting) -> None:
    post(100, 50, version="1")
    post(100, 51, version="2")
    (grown,) = grown_peaks(store, None, SavingsFilter())
    assert (grown.before_bytes, grown.after_bytes, grown.is_baseline, grown.goal) == (50, 51, False, "50%")


@pytest.mark.parametrize(
    "other",
    [
        {"name": "another"},
        {"batch": 8},
        {"budget": "60%"},
        {"planner": "milp"},
        {"differentiate": True},
        {"search_seconds": 1},
    ],
    ids=str,
)
def test_other_requests_and_shapes_are_not_compared(store: Store, post: Posting, other: dict[str, Any]) -> None:
    post(100)
    post(120, **other)
    assert found(store) == []
    post(130)
    assert found(store) == [("net", 100, 130)]


def test_a_point_of_a_curve_is_compared_with_points_of_curves_only(store: Store, post: Posting) -> None:
    post(100, 64, budget="1%", version="1")
    post(100, 176, budget="1%", version="2", curve=True)
    post(100, 177, budget="2%", version="3", curve=True)
    assert found(store) == []
    post(100, 178, budget="1%", version="4", curve=True)
    assert found(store) == [("net", 176, 178)]


def test_searches_of_one_version_are_not_compared_and_its_lowest_peak_counts(store: Store, post: Posting) -> None:
    post(100, 50, version="1")
    post(100, 60, version="1")
    assert found(store) == []
    post(100, 70, version="2")
    post(100, 55, version="2")
    assert found(store) == [("net", 50, 55)]


def test_fields_that_change_no_peak_are_ignored(store: Store, post: Posting) -> None:
    post(100, execute="no", layout="fast")
    post(120, **{"return": ["plan"]})
    assert found(store) == [("net", 100, 120)]


def test_going_back_to_the_version_before_ends_the_alert(store: Store, post: Posting) -> None:
    post(100)
    post(120)
    assert found(store) == [("net", 100, 120)]
    post(100)  # the same plan: nothing is stored but the time
    assert found(store) == []


def test_one_baseline_is_named_once_for_all_budgets(store: Store, post: Posting) -> None:
    for baseline in (100, 120):
        for budget in ("50%", "60%", "70%"):
            post(baseline, budget=budget)
        post(baseline, name="larger growth" if baseline == 100 else "other")
    post(300, name="larger growth")
    assert found(store) == [("larger growth", 100, 300), ("net", 100, 120)]
    assert found(store, model="net") == [("net", 100, 120)]
    assert found(store, model="none") == []
    assert found(store, since="2027-01-01") == found(store)


def test_plans_stored_without_their_request_are_not_compared(store: Store, post: Posting) -> None:
    post(100)
    post(120)
    with store.writing() as connection:
        connection.execute(sa.update(plans).values(request=None))
    assert found(store) == []


def test_the_dashboard_links_both_plans_and_folds_a_long_list(tmp_path: Any) -> None:
    app = create_app(Settings(data=tmp_path, workers=1, drain_seconds=1))
    post = Posting(app.state.service.store)
    ids = [(post(100, name=f"<net {n}>"), post(100 + n, name=f"<net {n}>")) for n in range(1, 6)]
    with TestClient(app) as client:
        page = parsed(client.get("/").text)
        (section,) = page.all("section", class_="notice bad grown")
        assert "5 peaks grew" in section.text and "2 more" in section.text
        line = section.all("li")[0]
        assert "<net 5> , batch 4, float32[4,8]: peak without recomputation, 100 B → 105 B (+5.0%)" in " ".join(
            line.text.split()
        )
        before, after = ids[4]
        links = [one.attributes["href"] for one in line.all("a")]
        assert links == [f"/plans/{after}", f"/plans/{before}", f"/compare?a={before}&b={after}"]
        assert "grew" not in client.get("/?model=net+9").text


def test_an_operator_is_alerted_to_models_of_its_own_tenant(
    gated: Gated, tenant: Callable[[str], dict[str, str]]
) -> None:
    for who, length in (("a", 3), ("b", 6)):
        assert gated.plan(tenant(who), graph=chain(length, "same name"), budget="90%").status_code == 201
    operator = gated.key("b", frozenset({"read", "plan", "operator"}))
    assert "grew" not in gated.client.get("/", headers=operator).text
    assert gated.plan(operator, graph=chain(9, "same name"), budget="90%").status_code == 201
    assert "grew" in gated.client.get("/", headers=operator).text
    assert "grew" not in gated.client.get("/", headers=tenant("a")).text
