"""First screen of a plan's page: bars, code that uses the plan, inputs, budget slider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.pages.plan import budget_slider, peak_bars, use_it
from tests.app.conftest import chain
from tests.app.pages.html import parsed
from tests.app.pages.test_plan_page import planned

ORIGIN = "http://remat.example"


@pytest.fixture(scope="module")
def plans(client: TestClient) -> list[str]:
    return [planned(client, chain(8, "first screen"), budget=budget) for budget in ("60%", "80%")]


def report(**plan: Any) -> dict[str, Any]:
    parts = {"parameters": 2, "gradients": 1, "optimizer": 0, "activations": 5, "workspace": 0, "reserve": 0}
    figures = {"budget_bytes": 6, "peak_bytes": 8, "peak_by": parts, **plan}
    base = {"peak_bytes": 10, "peak_by": parts | {"activations": 7}}
    return {"id": "p1", "runtime": "arena", "request": {}, "plan": figures, "baseline": base}


def test_bars_have_the_bytes_of_the_peaks_on_one_scale() -> None:
    bars = peak_bars.peak_bars(report())
    assert bars["top"] == 10 and bars["budget_x"] == 600
    before, after = bars["rows"]
    assert [part["kind"] for part in after["parts"]] == ["parameters", "gradients", "activations"]
    assert sum(part["width"] for part in before["parts"]) == 1000
    assert sum(part["width"] for part in after["parts"]) == 800
    assert [part["x"] for part in after["parts"]] == [0, 200, 300]


def test_a_far_budget_does_not_flatten_the_bars() -> None:
    bars = peak_bars.peak_bars(report(budget_bytes=1000))
    assert bars["top"] == 10 and bars["budget_x"] is None


def test_code_has_the_id_of_the_plan_and_asks_for_a_key_where_one_is_needed() -> None:
    without, with_key = (use_it.tabs(report(), ORIGIN, "net", has_keys) for has_keys in (False, True))
    assert [tab.name for tab in without] == ["PyTorch", "ONNX", "Python", "curl"]
    for tab in without[1:]:
        assert "p1" in tab.code and ORIGIN in tab.code and "REMAT_API_KEY" not in tab.code + tab.note
    assert all("REMAT_API_KEY" in tab.code + tab.note for tab in with_key[1:])


def test_the_code_for_pytorch_uses_the_plan_of_a_recorded_step_and_the_budget_of_another_model() -> None:
    recorded = use_it.tabs(report() | {"runtime": "torch-eager"}, ORIGIN, "net", False)[0].code
    assert 'plan="plan.json"' in recorded and "/v1/plans/p1" in recorded
    assert "budget=6)" in use_it.tabs(report(), ORIGIN, "net", False)[0].code
    asked = report() | {"request": {"budget": "60%"}}
    assert 'budget="60%")' in use_it.tabs(asked, ORIGIN, "net", False)[0].code


def test_shown_commands_are_answered(client: TestClient, plans: list[str]) -> None:
    page = parsed(client.get(f"/plans/{plans[0]}").text)
    onnx, python, curl = [one.text for one in page.all("pre")][1:]
    assert client.get(f"/v1/plans/{plans[0]}/graph", headers={"Accept": "application/onnx"}).status_code == 200
    assert f"/v1/plans/{plans[0]}/graph" in onnx and "application/onnx" in onnx and plans[0] in python
    saved = client.get(f"/v1/plans/{plans[0]}{use_it.SECTIONS}").json()
    assert use_it.SECTIONS in curl and {"timeline", "layout", "source"} <= saved.keys()


def test_the_page_says_the_answer_before_charts_and_notes(client: TestClient, plans: list[str]) -> None:
    text = client.get(f"/plans/{plans[0]}").text
    places = [text.index(f'id="{id}"') for id in ("answer", "budget", "use", "memory", "map", "about")]
    assert places == sorted(places)
    assert "float32[" in text[: places[0]]  # batch and shape of the inputs
    page = parsed(text)
    ids = {one.attributes["id"] for one in page.all() if "id" in one.attributes}
    links = [one.attributes["href"] for one in page.all("a") if one.attributes.get("href", "").startswith("#")]
    assert len(links) > 8 and {link[1:] for link in links} <= ids


def test_the_slider_has_every_comparable_plan_and_a_request_without_a_goal(
    client: TestClient, plans: list[str]
) -> None:
    (form,) = parsed(client.get(f"/plans/{plans[0]}").text).all(id="budget")
    points = json.loads(form.attributes["data-points"])
    assert {point["id"] for point in points} == set(plans)
    assert points == client.get(f"/plans/{plans[0]}/points.json").json()
    fields = json.loads(form.attributes["data-request"])
    assert not fields.keys() & (budget_slider.GOAL_FIELDS - {"return"})
    answer = client.post("/v1/plans", json=fields | {"budget": points[-1]["budget_bytes"], "search_seconds": 0.2})
    assert answer.status_code in (200, 201), answer.text


def test_the_slider_asks_for_no_more_seconds_than_the_service_gives() -> None:
    asked = report(bound={"peak_bytes": 3}) | {"row": {"graph_id": "g"}}
    asked["baseline"]["seconds"] = 1.0
    assert json.loads(str(budget_slider.slider(asked, [], 2.0)["request"]))["search_seconds"] == 2.0
    assert json.loads(str(budget_slider.slider(asked, [], 60.0)["request"]))["search_seconds"] == 5
