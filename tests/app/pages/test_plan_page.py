"""Page of a plan: headline, columns of the charts, downloads, comparison, tenancy."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.api.main import create_app
from app.pages.plan import files
from app.pages.shell import assets
from app.render.plan import engines
from app.render.plan.columns import decode_columns
from app.render.plan.svg import pareto_front
from app.settings import Settings
from planner.report import saved_report
from tests.app.api.auth.conftest import Gated, gated, tenant
from tests.app.conftest import chain, value
from tests.app.pages.html import Element, parsed
from tests.planner.pipeline import test_overlap

__all__ = ["gated", "tenant"]
MARKUP = '<script>alert("&1")</script>'


def cells(text: str) -> list[list[str]]:
    """Text of the cells of every row of a page's tables, without those to pick."""
    rows = [[one for one in row.inside if isinstance(one, Element)] for row in parsed(text).all("tr")]
    return [[one.text for one in row if one.attributes.get("class") != "pick"] for row in rows]


def read(client: TestClient, id: str, *parts: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Meta of the first response, and the columns of all."""
    found = [decode_columns(client.get(f"/plans/{id}/{part}.bin").content) for part in parts]
    return found[0][0], {name: column for _, columns in found for name, column in columns.items()}


def planned(client: TestClient, graph: dict[str, Any], **fields: Any) -> str:
    asked = {"graph": graph, "planner": "greedy", "iterations": 20, "budget": "60%", **fields}
    answer = client.post("/v1/plans", json=asked)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
def plans(client: TestClient) -> list[str]:
    return [planned(client, chain(8, "of the page"), budget=budget) for budget in ("60%", "80%")]


def test_the_page_shows_headline_recomputed_nodes_and_curve(client: TestClient, plans: list[str]) -> None:
    report = client.get(f"/v1/plans/{plans[0]}").json()
    answer = client.get(f"/plans/{plans[0]}")
    assert answer.status_code == 200
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    text = answer.text
    assert "<strong>Fits</strong> 96.00 KiB: peak 96.00 KiB" in text
    assert f"{len(report['plan']['recomputed'])} recomputed node" in text
    assert f"/compare?a={plans[0]}&amp;b={plans[1]}" in text  # another plan of the same graph
    assert 'class="ring"' in text and "<style" not in text  # the curve, styled by the sheet


def test_columns_are_gzipped_if_the_client_accepts_it(client: TestClient, plans: list[str]) -> None:
    path = f"/plans/{plans[0]}/memory.bin"
    small, plain = (client.get(path, headers={"Accept-Encoding": coding}) for coding in ("gzip", "identity"))
    assert small.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) == len(plain.content)
    assert small.content == plain.content  # the client has undone the coding
    assert small.headers["etag"] != plain.headers["etag"] and small.headers["vary"].startswith("Accept-Encoding")


def test_columns_equal_the_numbers_of_the_report(client: TestClient, plans: list[str]) -> None:
    report = client.get(f"/v1/plans/{plans[0]}?return=timeline&return=layout&return=explain").json()
    meta, columns = read(client, plans[0], "memory", "names")
    assert columns["after"].tolist() == report["timeline"]["step_bytes"]
    assert columns["before"].tolist() == report["timeline"]["baseline_step_bytes"]
    names = columns["nodes"]
    ran = [[names[n], run] for n, run in zip(columns["step_node"], columns["step_run"], strict=True)]
    assert ran == report["plan"]["order"]
    layout = report["layout"]
    told = sorted(zip(layout["value"], *(layout[k] for k in ("run", "from_step", "to_step", "offset")), strict=True))
    values = [columns["values"][v] for v in columns["value"] if v >= 0]
    drawn = zip(values, *(columns[k].astype(int).tolist() for k in ("run", "first", "last", "offset")), strict=True)
    assert sorted(drawn) == told
    assert (columns["first"][1:] >= columns["first"][:-1]).all()
    again = {columns["values"][v] for v, kind in zip(columns["value"], columns["again"], strict=True) if kind == 2}
    assert again == {value for value, run in zip(layout["value"], layout["run"], strict=True) if run}
    assert meta["has_layout"] and meta["holders"]["after"][0]["value"] == report["explain"]["holders"][0]["value"]


def test_baseline_lifetimes_add_up_to_the_timeline(client: TestClient, plans: list[str]) -> None:
    _, memory = read(client, plans[0], "memory", "names")
    _, graph = read(client, plans[0], "graph")
    for step, told in enumerate(memory["before"].tolist()):
        there = (graph["held_first"] <= step) & (step <= graph["held_last"])
        assert graph["held_bytes"][there].sum() == told
    assert [memory["nodes"][n] for n in graph["before_node"]] == [node["name"] for node in chain(8)["nodes"]]
    runs = dict(zip(memory["nodes"], graph["runs"].tolist(), strict=True))
    report = client.get(f"/v1/plans/{plans[0]}").json()
    assert sorted(name for name, count in runs.items() if count > 1) == sorted(report["plan"]["recomputed"])


def test_columns_are_cached_by_the_client(client: TestClient, plans: list[str]) -> None:
    path = files.data_url(plans[0])["memory"]
    first = client.get(path)
    assert assets.assets_digest() in path and "immutable" in first.headers["cache-control"]
    assert client.get(path, headers={"If-None-Match": first.headers["etag"]}).status_code == 304


def test_names_with_markup_stay_text(client: TestClient) -> None:
    text = json.dumps(chain(6, MARKUP))
    graph = json.loads(text.replace('"h1"', json.dumps(f"{MARKUP}h")).replace('"f1"', json.dumps(f"{MARKUP}f")))
    id = planned(client, graph, budget="70%")
    other = planned(client, graph, budget="90%")
    for path in (f"/plans/{id}", f"/plans/{id}/curve", f"/compare?a={id}&b={other}"):
        text = client.get(path).text
        assert MARKUP not in text and "alert(" in text, path
    for picture in ("timeline", "map", "graph", "curve"):
        data = client.get(f"/plans/{id}/{picture}.svg")
        assert MARKUP not in data.text
        ET.fromstring(data.text)
    disposition = client.get(f"/plans/{id}/plan.json").headers["content-disposition"]
    assert disposition == 'attachment; filename="script-alert-1-script-plan.json"'


def test_a_plan_without_layout_has_no_address_map(client: TestClient) -> None:
    id = planned(client, chain(5, "flat"), layout="none")
    assert "has no layout" in client.get(f"/plans/{id}").text
    meta, columns = read(client, id, "memory")
    assert not meta["has_layout"] and len(columns["first"]) == 0 and meta["holders"]["after"]
    assert client.get(f"/plans/{id}/map.svg").status_code == 404


def test_a_plan_with_copies_shows_its_engines_over_time(client: TestClient, plans: list[str]) -> None:
    graph = chain(8, "copies")
    for node in graph["nodes"]:
        node["cost"] = {"seconds": 1.0}
    device = {"like": "cpu-reference", "host_bandwidth": 1e12}
    id = planned(client, graph, planner="auto", offload=True, device=device)
    assert f'<img class="engines" src="/plans/{id}/engines.svg"' in client.get(f"/plans/{id}").text
    svg = ET.fromstring(client.get(f"/plans/{id}/engines.svg").text)
    words = [element.text or "" for element in svg.iter() if element.tag.endswith("text")]
    bars = [element.get("d") for element in svg.iter() if "kind" in (element.get("class") or "").split()]
    assert {"compute", "to host", "from host"} <= set(words) and any(
        word.startswith("busy: compute ") for word in words
    )
    assert len(bars) == 3 and all(bars)
    assert "engines.svg" not in client.get(f"/plans/{plans[0]}").text
    refused = client.get(f"/plans/{plans[0]}/engines.svg")
    assert refused.status_code == 404 and "offload" in refused.text


def test_a_plan_with_overlap_shows_its_collectives_over_time(client: TestClient) -> None:
    fields = {"budget": 32 * test_overlap.BYTES, "planner": "auto", "overlap": True}
    id = planned(client, json.loads(test_overlap.step()), **fields)
    assert f'<img class="engines" src="/plans/{id}/engines.svg"' in client.get(f"/plans/{id}").text
    svg = ET.fromstring(client.get(f"/plans/{id}/engines.svg").text)
    words = {element.text for element in svg.iter() if element.tag.endswith("text")}
    assert {"compute", "collectives"} <= words and "to host" not in words
    assert "busy: compute 87.1%, collectives 25.8% of 31 ms" in words


def test_intervals_without_a_visible_gap_are_drawn_as_one() -> None:
    first, last = engines._merged(np.array([5.0, 0.0, 1.0, 3.0]), np.array([5.0, 1.0, 2.0, 3.05]))
    assert (first.tolist(), last.tolist()) == ([0.0, 3.0, 5.0], [2.0, 3.2, 5.2])
    assert [len(each) for each in engines._merged(np.zeros(0), np.zeros(0))] == [0, 0]


def test_a_graph_of_one_node_has_a_page(client: TestClient) -> None:
    node = {"name": "only", "op": "Relu", "inputs": ["x"], "outputs": ["y"]}
    graph = {"format": "remat/1", "values": [value("x", "input")], "nodes": [node], "outputs": ["y"]}
    id = planned(client, graph, budget="100%")
    text = client.get(f"/plans/{id}").text
    assert "No node is recomputed" in text and "the only stored plan" in text
    _, columns = read(client, id, "graph")
    assert columns["runs"].tolist() == [1]
    for picture in ("timeline", "map", "graph", "curve"):
        assert client.get(f"/plans/{id}/{picture}.svg").status_code == 200


def test_a_graph_without_nodes_has_a_page(client: TestClient) -> None:
    graph = {"format": "remat/1", "values": [value("x", "input")], "nodes": [], "outputs": ["x"]}
    id = planned(client, graph, budget="100%")
    assert client.get(f"/plans/{id}").status_code == 200
    for data in ("memory.bin", "names.bin", "graph.bin", "timeline.svg", "map.svg", "graph.svg", "timeline.csv"):
        assert client.get(f"/plans/{id}/{data}").status_code == 200, data


def test_a_plan_over_budget_shows_what_to_change(client: TestClient) -> None:
    id = planned(client, chain(6, "tight"), budget=1)
    text = client.get(f"/plans/{id}").text
    assert "<strong>Does not fit</strong>" in text and "No plan within this budget was found" in text
    assert "remat fit" in text


def test_an_unknown_plan_is_an_error_page(client: TestClient) -> None:
    for path in (
        "/plans/none",
        "/plans/none/memory.bin",
        "/plans/none/names.bin",
        "/plans/none/plan.json",
        "/compare?a=none&b=none",
    ):
        answer = client.get(path)
        assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/html")
        assert "no plan" in answer.text


def test_differences_of_compared_plans_have_signs_and_units(client: TestClient, plans: list[str]) -> None:
    text = client.get(f"/compare?a={plans[0]}&b={plans[1]}").text
    rows = {row[0]: row[-1] for row in cells(text) if len(row) == 5}
    assert re.fullmatch(r"\+[\d.]+ KiB", rows["peak"])
    assert re.fullmatch(r"−[\d.]+ µs", rows["time"])
    assert re.fullmatch(r"−[\d.]+ points", rows["overhead"])
    assert rows["runs"] in ("−1", "+1")
    (saved,) = (row for row in cells(text) if row[0] == "Memory saved")
    assert re.search(r"−[\d.]+ points$", saved[2])


def test_plans_to_pick_from_have_their_shapes_and_outcomes(client: TestClient, plans: list[str]) -> None:
    text = client.get("/compare").text
    (row,) = (row for row in cells(text) if row[0].startswith("of the page") and row[1] == "60%")
    assert "float32[64,64]" in row[0] and row[3] in ("fits", "proven optimal")


def test_more_plans_than_are_compared_are_refused(client: TestClient) -> None:
    for query in ("plan=none&" * 7, "a=none&b=none&" + "plan=none&" * 5):
        answer = client.get(f"/compare?{query.rstrip('&')}")
        assert answer.status_code == 422 and answer.headers["content-type"].startswith("text/html")


def test_downloads_have_the_content_of_their_format(client: TestClient, plans: list[str]) -> None:
    whole = client.get(f"/plans/{plans[0]}/plan.json")
    assert saved_report.verify(whole.json())["valid"]
    assert client.get(f"/plans/{plans[0]}/source.json").json()["format"] == "remat/1"
    rewritten = client.get(f"/plans/{plans[0]}/rewritten/rows")
    assert rewritten.headers["content-disposition"] == 'attachment; filename="of-the-page-rewritten.json"'
    assert len(rewritten.json()["nodes"]) == len(whole.json()["plan"]["order"])
    assert client.get(f"/plans/{plans[0]}/rewritten/onnx").content[:1] == b"\x08"
    assert client.get(f"/plans/{plans[0]}/rewritten/mxnet").status_code == 422  # mxnet has no such op
    assert client.get(f"/plans/{plans[0]}/rewritten/word").status_code == 404
    rows = list(csv.DictReader(io.StringIO(client.get(f"/plans/{plans[0]}/timeline.csv").text)))
    steps = whole.json()["timeline"]
    assert [int(row["bytes"]) for row in rows if row["bytes"]] == steps["step_bytes"]
    assert [int(row["bytes_before"]) for row in rows if row["bytes_before"]] == steps["baseline_step_bytes"]
    for picture in ("timeline", "map", "graph", "curve"):
        assert ET.fromstring(client.get(f"/plans/{plans[0]}/{picture}.svg").text).tag.endswith("svg")
        assert client.get(f"/plans/{plans[0]}/{picture}.png").content[:4] == b"\x89PNG"


def test_the_map_draws_every_rectangle(client: TestClient, plans: list[str]) -> None:
    _, columns = read(client, plans[0], "memory", "names")
    svg = ET.fromstring(client.get(f"/plans/{plans[0]}/map.svg").text)
    paths = [path.get("d") or "" for path in svg.iter() if (path.get("class") or "").startswith("kind kind")]
    assert sum(path.count("z") for path in paths) == len(columns["first"])


def test_two_plans_are_compared_as_remat_diff_does(client: TestClient, plans: list[str]) -> None:
    text = client.get("/compare", params={"a": plans[0], "b": plans[1]}).text
    assert re.search(r"<td>96.00 KiB</td><td>128.0+ KiB<span class=\"sub\">\+32.00 KiB \(\+33.3%\)</span></td>", text)
    assert '<th scope="row">budget</th>' in text and "order, from step" in text
    assert "µs</td>" in text and " us</td>" not in text and "[&#34;" not in text
    assert "µs</td>" in text and " us<" not in text and "[&#34;" not in text
    found = client.get("/compare.csv", params={"a": plans[0], "b": plans[1]}).text
    assert [row["what"] for row in csv.DictReader(io.StringIO(found))][:2] == ["budget_bytes", "peak_bytes"]
    assert "The two plans are equal" in client.get("/compare", params={"a": plans[0], "b": plans[0]}).text
    assert "Enter the ids of two to six plans" in client.get("/compare").text


def test_plans_to_compare_are_picked_from_the_newest(client: TestClient, plans: list[str]) -> None:
    shown = parsed(client.get("/compare").text)
    assert {one.attributes["value"] for one in shown.all("input", type="checkbox")} >= set(plans)
    one = parsed(client.get(f"/compare?plan={plans[0]}").text)
    picked = [each for each in one.all("input", type="checkbox") if "checked" in each.attributes]
    assert [each.attributes["value"] for each in picked] == [plans[0]]


def test_up_to_six_plans_are_compared_with_the_first(client: TestClient, plans: list[str]) -> None:
    text = client.get("/compare", params={"plan": [plans[0], plans[1], plans[0], plans[1]]}).text
    assert re.search(
        r"<td>96.00 KiB</td><td>128.0+ KiB<span class=.sub.>\+32.00 KiB \(\+33.3%\)</span></td><td>96", text
    )
    assert text.count('<span class="sub">equal</span>') >= 5 and text.count("data-plan=") == 4
    assert "budget_bytes" not in text and f"/compare?plan={plans[0]}&amp;plan={plans[1]}" in text
    assert client.get("/compare", params={"plan": plans[:1] * 7}).status_code == 422


def test_plans_of_two_models_are_compared_by_their_nodes(client: TestClient, plans: list[str]) -> None:
    shorter = planned(client, chain(7, "of the page"), budget="60%")
    text = client.get("/compare", params={"a": plans[0], "b": shorter}).text
    assert "model hash" in text and '<th scope="row">node</th><td class="text"><code>f7</code>' in text


def test_an_embedded_page_has_no_navigation_and_may_be_framed(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, workers=1, wait_seconds=60, embed_ancestors="https://wiki.example")
    with TestClient(create_app(settings)) as client:
        id = planned(client, chain(4))
        answer = client.get(f"/plans/{id}?embed=1")
        assert "frame-ancestors https://wiki.example" in answer.headers["content-security-policy"]
        assert "<nav" not in answer.text and "<form" not in answer.text and "request-curve" not in answer.text
        assert "frame-ancestors 'none'" in client.get(f"/plans/{id}").headers["content-security-policy"]


def test_a_plan_is_visible_to_its_tenant_only(gated: Gated, tenant: Callable[[str], dict[str, str]]) -> None:
    graph = chain(5, "of a")
    ids = [gated.plan(tenant("a"), graph=graph, budget=budget).json()["id"] for budget in ("70%", "90%")]
    paths = [
        f"/plans/{ids[0]}{rest}"
        for rest in ("", "/memory.bin", "/names.bin", "/graph.bin", "/plan.json", "/map.svg", "/curve")
    ]
    for path in (*paths, f"/plans/{ids[0]}/rewritten/rows", f"/compare?a={ids[0]}&b={ids[1]}"):
        assert gated.client.get(path, headers=tenant("a")).status_code == 200, path
        other = gated.client.get(path, headers=tenant("b"))
        assert other.status_code == 404 and "of a" not in other.text, path


def test_plans_of_other_tenants_of_the_same_graph_are_on_no_page(
    gated: Gated, tenant: Callable[[str], dict[str, str]]
) -> None:
    graph, found = chain(6, "of both"), {}
    for name, budgets in (("a", ("70%", "90%")), ("b", ("60%", "80%"))):
        found[name] = [gated.plan(tenant(name), graph=graph, budget=budget).json()["id"] for budget in budgets]
    for path in (f"/plans/{found['a'][0]}", f"/plans/{found['a'][0]}/curve"):
        text = gated.client.get(path, headers=tenant("a")).text
        assert found["a"][1] in text and not any(id in text for id in found["b"])


def test_the_button_requests_a_curve_of_the_same_graph(client: TestClient, plans: list[str]) -> None:
    (button,) = parsed(client.get(f"/plans/{plans[0]}").text).all(id="request-curve")
    question = json.loads(button.attributes["data-request"])
    assert question["budgets"][0] == "90%" and "budget" not in question and "iterations" not in question
    answer = client.post("/v1/curves", json=question | {"budgets": ["90%", "70%"], "search_seconds": 1})
    assert answer.status_code in (201, 202), answer.text


def test_the_pareto_front_omits_dominated_plans_and_tightens_bounds() -> None:
    def row(budget: int, overhead: float, bound: float, status: str = "found") -> dict[str, Any]:
        return {
            "budget_bytes": budget,
            "peak_bytes": budget,
            "overhead": overhead,
            "bound_overhead": bound,
            "status": status,
        }

    rows = pareto_front([row(10, 0.5, 0.1), row(20, 0.6, 0.2), row(30, 0.2, 0.0), row(5, 0.9, 0.0, "over_budget")])
    assert [(found["budget_bytes"], found["overhead"], found["bound_overhead"]) for found in rows] == [
        (5, 0.9, 0.2),
        (10, 0.5, 0.2),
        (30, 0.2, 0.0),
    ]
