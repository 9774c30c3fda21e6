"""The page of a plan requests the largest batch with the plan's settings; the dashboard shows the result."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.testclient import TestClient

from app.api.main import create_app
from app.settings import Settings
from tests.app.conftest import one_layer
from tests.app.pages.html import parsed


def test_a_fit_requested_on_a_plans_page_is_shown_on_the_dashboard(tmp_path: Path) -> None:
    """Uses a service of its own, whose dashboard shows no other plans."""
    with TestClient(create_app(Settings(data=tmp_path, workers=1, drain_seconds=1))) as client:
        check_dashboard(client)


def check_dashboard(client: TestClient) -> None:
    asked = {"graph": one_layer(), "loss": "loss", "budget": "90%", "planner": "greedy", "iterations": 5}
    plan = client.post("/v1/plans", json=asked | {"execute": "auto"}).json()
    (form,) = parsed(client.get(f"/plans/{plan['id']}").text).all("form", id="request-fit")
    question = json.loads(form.attributes["data-request"])
    assert (question["fits"], question["loss"], question["planner"]) == ("a100-80gb", "loss", "greedy")
    del question["fits"]  # another memory is named
    found = client.post("/v1/fits", json=question | {"budget": "64KiB", "iterations": 5}).json()
    assert found["size"] > 8, found
    page = parsed(client.get("/").text)
    (card,) = [one for one in page.all("div", class_="card") if one.text.startswith("Largest batch")]
    assert f"{found['size']} in 64.00 KiB" in card.text and "one layer" in card.text, card.text
    assert f"/plans/{found['plan'].rpartition('/')[2]}" in [one.attributes["href"] for one in card.all("a")]
    (row,) = [line for line in page.all("tbody")[0].all("tr") if line.all("a", href=f"/plans/{plan['id']}")]
    cells = [cell.text for cell in row.inside if not isinstance(cell, str)]
    names = [one.text.split()[0] for one in page.all("thead")[0].all("th")]
    cell = dict(zip(names, cells, strict=True))
    assert cell["Outcome"].endswith("bit-identical") and cell["Peak"].startswith(cell["Measured"])  # as predicted
    assert cell["Largest"].startswith(str(found["size"]))
