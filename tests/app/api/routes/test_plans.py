"""Graphs, plans and operations over HTTP, as the wire contract says."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import Any

import anyio
import msgspec
import onnx
import pytest
import zstandard
from onnx import helper
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from app.api.middleware.head import HeadMiddleware
from app.jobs.durable_jobs import DurableJobs
from app.settings import Settings
from tests.app.conftest import chain, one_layer

JSON = {"content-type": "application/json"}


def post_graph(client: TestClient, document: dict[str, Any]) -> str:
    answer = client.post("/v1/graphs", json=document)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def plan(client: TestClient, **fields: Any) -> Any:
    headers = fields.pop("headers", {})
    return client.post("/v1/plans", json=fields, headers=headers)


def test_the_example_of_the_contract_is_answered_with_its_report(client: TestClient) -> None:
    answer = plan(client, graph=one_layer(), budget="80%", loss="loss")
    assert answer.status_code == 201, answer.text
    report = answer.json()
    assert answer.headers["location"] == f"/v1/plans/{report['id']}"
    assert report["format"] == "remat-report/1"
    assert report["checked"] is True
    assert set(report) >= {"model", "baseline", "plan", "timeline", "executed", "warnings", "elapsed"}
    assert not {"layout", "source", "graph", "explain"} & set(report)
    assert len(report["timeline"]["step_bytes"]) == len(report["plan"]["order"])


def test_the_id_of_a_graph_is_the_hash_of_the_document_that_comes_back(client: TestClient) -> None:
    answer = client.post("/v1/graphs", json=chain(name="hashed"))
    id = answer.json()["id"]
    assert answer.headers["etag"] == f'"{id}"'
    assert answer.headers["location"] == f"/v1/graphs/{id}"
    got = client.get(f"/v1/graphs/{id}")
    assert hashlib.sha256(got.content).hexdigest() == id
    assert client.get(f"/v1/graphs/{id}", headers={"if-none-match": f'"{id}"'}).status_code == 304


@pytest.mark.parametrize("packed", ["json", "columns", "msgpack", "gzip", "zstd"])
def test_the_same_graph_has_the_same_id_in_every_form(client: TestClient, packed: str) -> None:
    id = post_graph(client, chain())
    document = json.dumps(chain()).encode()
    columns = client.get(f"/v1/graphs/{id}", headers={"accept": "application/vnd.remat.columns+json"})
    assert columns.headers["content-type"] == "application/vnd.remat.columns+json"
    body, headers = {
        "json": (document, JSON),
        "columns": (columns.content, JSON),
        "msgpack": (msgspec.msgpack.encode(chain()), {"content-type": "application/msgpack"}),
        "gzip": (gzip.compress(document), JSON | {"content-encoding": "gzip"}),
        "zstd": (zstandard.ZstdCompressor().compress(document), JSON | {"content-encoding": "zstd"}),
    }[packed]
    assert client.post("/v1/graphs", content=body, headers=headers).json()["id"] == id


def test_a_model_of_onnx_comes_in_and_goes_out(client: TestClient) -> None:
    id = post_graph(client, one_layer())
    model = client.get(f"/v1/graphs/{id}", headers={"accept": "application/onnx"})
    assert model.headers["content-type"] == "application/onnx"
    assert model.headers["vary"] == "Accept"
    assert [node.op_type for node in onnx.load_from_string(model.content).graph.node] == ["MatMul", "ReduceMean"]
    again = client.post("/v1/graphs", content=model.content, headers={"content-type": "application/onnx"})
    assert again.status_code == 201
    assert again.json()["format"] == "onnx"


def test_unbound_dimensions_are_bound_by_query(client: TestClient) -> None:
    document = one_layer()
    document["values"][0]["shape"] = ["N", 16]
    del document["values"][2]["shape"]
    answer = client.post("/v1/graphs", json=document)
    assert answer.status_code == 422
    assert "N" in answer.json()["detail"]
    assert client.post("/v1/graphs?dim=N=8", json=document).status_code == 201


def test_unbound_dimensions_of_an_inline_graph_are_bound_by_its_request(client: TestClient) -> None:
    document = one_layer()
    document["values"][0]["shape"] = ["N", 16]
    del document["values"][2]["shape"]
    for length in (8, 24):  # of the same bytes
        request = {"graph": document, "dims": {"N": length}, "budget": "90%", "planner": "greedy", "iterations": 1}
        planned = client.post("/v1/plans", json=request)
        assert planned.status_code == 201, planned.text
        source = client.get(f"{planned.headers['location']}/source").json()
        assert source["values"][0]["shape"] == [length, 16]
        assert [row["id"] for row in client.get("/v1/plans?limit=1").json()["plans"]] == [planned.json()["id"]]


@pytest.mark.parametrize(
    ("shapes", "length"),
    [
        ({"batch": 8}, 8),
        ({"inputs": {"x": [8, 16]}}, 8),
        ({"inputs": {"x": "8x16"}, "dims": {"N": 8}}, 8),
        ({"batch": 4, "dims": {"N": 8}}, 8),  # as on the command line
    ],
)
def test_a_batch_and_inputs_bind_the_dimensions_of_an_inline_graph(
    client: TestClient, shapes: dict[str, Any], length: int
) -> None:
    document = one_layer()
    document["values"][0]["shape"] = ["N", 16]
    del document["values"][2]["shape"]
    planned = plan(client, graph=document, budget="90%", planner="greedy", iterations=1, **shapes)
    assert planned.status_code == 201, planned.text
    assert planned.json()["model"]["inputs"][0]["shape"] == [length, 16]


def test_a_dimension_of_two_lengths_is_refused(client: TestClient) -> None:
    document = one_layer()
    document["values"][0]["shape"] = ["N", 16]
    del document["values"][2]["shape"]
    refused = plan(client, graph=document, budget="90%", inputs={"x": [4, 16]}, dims={"N": 8})
    assert (refused.status_code, refused.json()["code"]) == (422, "dimension_conflict")


def test_a_data_dependent_length_is_bound_by_query(client: TestClient) -> None:
    node = helper.make_node("NonZero", ["x"], ["places"])
    ends = (helper.make_tensor_value_info(n, k, s) for n, k, s in (("x", 1, [4]), ("places", 7, [1, None])))
    data = helper.make_model(helper.make_graph([node], "g", *([one] for one in ends))).SerializeToString()
    headers = {"content-type": "application/onnx"}
    refused = client.post("/v1/graphs", content=data, headers=headers)
    assert (refused.status_code, "--max places=N" in refused.text) == (422, True)
    assert client.post("/v1/graphs?max=places=3", content=data, headers=headers).status_code == 201


def test_parts_of_a_plan_are_immutable_and_negotiated(client: TestClient) -> None:
    id = plan(client, graph=one_layer(), loss="loss", budget="100%").json()["id"]
    for part in ("", "/layout", "/timeline", "/source", "/graph"):
        got = client.get(f"/v1/plans/{id}{part}")
        assert got.status_code == 200
        assert "immutable" in got.headers["cache-control"]
        again = client.get(f"/v1/plans/{id}{part}", headers={"if-none-match": got.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    whole = client.get(f"/v1/plans/{id}?return=plan&return=layout&return=graph").json()
    assert whole["layout"] == client.get(f"/v1/plans/{id}/layout").json()
    assert whole["graph"] == client.get(f"/v1/plans/{id}/graph").json()
    rewritten = client.get(f"/v1/plans/{id}/graph", headers={"accept": "application/onnx"})
    onnx.checker.check_model(onnx.load_from_string(rewritten.content))
    refused = client.get(f"/v1/plans/{id}/graph", headers={"accept": "image/png"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


def test_a_plan_without_a_layout_has_none(client: TestClient) -> None:
    id = plan(client, graph=chain(), layout="none").json()["id"]
    answer = client.get(f"/v1/plans/{id}/layout")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_section")


def test_the_same_question_is_answered_from_what_is_stored(client: TestClient) -> None:
    graph_id = post_graph(client, chain(5))
    first = plan(client, graph_id=graph_id, budget="70%", seed=3)
    jobs = len(client.get("/v1/operations?limit=1000").json()["operations"])
    second = plan(client, graph=chain(5), seed=3, budget="70%", **{"return": ["plan"]})
    assert second.json()["id"] == first.json()["id"]
    assert "timeline" not in second.json()
    assert len(client.get("/v1/operations?limit=1000").json()["operations"]) == jobs


def test_over_budget_is_a_result(client: TestClient) -> None:
    report = plan(client, graph=chain(), budget=1).json()
    assert report["plan"]["status"] == "over_budget"
    assert report["plan"]["smallest_budget_bytes"] > 1


def test_who_will_not_wait_gets_the_operation_and_follows_it(client: TestClient) -> None:
    answer = plan(client, graph=chain(6), headers=[("prefer", "respond-async"), ("prefer", "handling=lenient, wait=0")])
    assert answer.status_code == 202
    operation = answer.json()
    assert answer.headers["location"] == f"/v1/operations/{operation['id']}"
    assert answer.headers["retry-after"]
    stream = client.get(f"/v1/operations/{operation['id']}/events")
    assert stream.headers["content-type"].startswith("text/event-stream")
    events = [dict(line.split(": ", 1) for line in block.split("\n")) for block in stream.text.strip().split("\n\n")]
    last = json.loads(events[-1]["data"])
    assert (events[-1]["event"], last["state"]) == ("state", "succeeded")
    assert client.get(last["result"]).status_code == 200
    seen = {"last-event-id": events[-1]["id"]}
    assert client.get(f"/v1/operations/{operation['id']}/events", headers=seen).status_code == 204
    shown = client.get(f"/v1/operations/{operation['id']}")
    assert shown.json() == last
    assert client.post(f"/v1/operations/{operation['id']}:cancel").json() == last


def test_an_idempotency_key_starts_one_operation_and_refuses_another_body(client: TestClient) -> None:
    key = {"idempotency-key": "k-1", "prefer": "wait=0"}
    first = plan(client, graph=chain(7), headers=dict(key))
    second = plan(client, graph=chain(7), headers={**key, "prefer": "wait=60"})
    assert second.status_code == 201
    assert client.get(first.headers["location"]).json()["result"] == second.headers["location"]
    other = plan(client, graph=chain(7), budget="50%", headers=dict(key))
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


BAD: list[tuple[str, dict[str, str], bytes, int, str]] = [
    ("/v1/graphs", JSON, b"{", 400, "unknown_format"),
    ("/v1/graphs", JSON, json.dumps(chain()).encode()[:-9], 400, "not_parseable"),
    ("/v1/graphs", {"content-type": "application/onnx"}, b"\xff\xff", 400, "unknown_format"),
    ("/v1/graphs", {}, b"{}", 415, "unsupported_media_type"),
    ("/v1/graphs", {"content-type": "text/csv"}, b"{}", 415, "unsupported_media_type"),
    ("/v1/graphs", JSON | {"content-encoding": "br"}, b"{}", 415, "unsupported_encoding"),
    ("/v1/graphs", JSON | {"content-encoding": "gzip"}, b"{}", 400, "bad_compression"),
    ("/v1/graphs?bacth=3", JSON, b"{}", 422, "unknown_parameter"),
    ("/v1/graphs?batch=many", JSON, b"{}", 422, "bad_parameter"),
    ("/v1/graphs?input=x=3xthree", JSON, b"{}", 422, "bad_flag"),
    ("/v1/plans", JSON, b"[1]", 422, "bad_field"),
    ("/v1/plans", JSON, b"nonsense", 400, "not_parseable"),
    ("/v1/plans", JSON, b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "too_deep"),
    ("/v1/plans", JSON, b"{}", 422, "one_graph"),
    ("/v1/plans", JSON, b'{"graph_id": "' + b"0" * 64 + b'"}', 404, "not_found"),
    ("/v1/plans", JSON, b'{"graph_id": "x", "bugdet": 3}', 422, "unknown_field"),
    ("/v1/plans", JSON, b'{"graph_id": "x", "search_seconds": 80000}', 422, "too_long"),
    ("/v1/plans", JSON, b'{"graph_id": "x", "host_memory": 9}', 422, "bad_field"),
    ("/v1/plans", JSON, b'{"graph_id": "x", "offload": true, "device": "mi250x"}', 422, "no_host_link"),
    ("/v1/curves", JSON, b'{"graph_id": "x", "offload": true, "device": "mi250x"}', 422, "no_host_link"),
]


@pytest.mark.parametrize(("path", "headers", "body", "status", "code"), BAD)
def test_bad_requests_are_told_as_problems(
    client: TestClient, path: str, headers: dict[str, str], body: bytes, status: int, code: str
) -> None:
    answer = client.post(path, content=body, headers=headers)
    said = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert said["status"] == status
    assert said["code"] == code or not code
    assert said["type"] == f"/problems/{said['code']}"
    assert said["instance"] == path.partition("?")[0]
    assert said["detail"]


def test_every_fault_of_a_link_and_too_little_host_memory_are_answered_at_their_fields(client: TestClient) -> None:
    device = {"like": "a100-80gb", "host_bandwidth": 0, "host_link": "token ring", "engine": "dma"}
    answer = plan(client, graph=chain(), budget="90%", offload=True, device=device)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_device")
    assert {row["path"] for row in answer.json()["errors"]} == {f"device.{name}" for name in device if name != "like"}
    answer = plan(client, graph=chain(), budget="90%", offload=True, host_memory=1)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "host_memory")
    assert "the smallest value that may be copied" in answer.text


def test_ten_findings_come_at_once(client: TestClient) -> None:
    document = chain(12)
    for node in document["nodes"]:
        node["inputs"] = ["nowhere"]
    answer = client.post("/v1/graphs", json=document)
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 10
    assert all(set(row) >= {"path", "found", "expected", "remedy"} for row in answer.json()["errors"])


def test_bodies_past_the_limit_name_the_setting(tmp_path: Any) -> None:
    from app.api.main import create_app

    small = Settings(data=tmp_path, body_bytes=1000, decompressed_bytes=2000, drain_seconds=0)
    with TestClient(create_app(small)) as client:
        for content, headers in (
            (b"x" * 1001, {}),
            (iter([b"x" * 600, b"y" * 600]), {}),
            (gzip.compress(bytes(5000)), {"content-encoding": "gzip"}),
        ):
            answer = client.post("/v1/graphs", content=content, headers=JSON | headers)
            assert answer.status_code == 413
            assert answer.json()["limit"]["name"].startswith("REMAT_")
            assert answer.json()["errors"][0]["expected"].startswith("at most ")


def test_other_methods_and_paths_are_problems_too(client: TestClient) -> None:
    wrong = client.delete("/v1/operations")
    assert (wrong.status_code, wrong.headers["allow"], wrong.json()["code"]) == (405, "GET, HEAD", "method_not_allowed")
    assert "DELETE /v1/operations: the methods of this path are GET, HEAD;" in wrong.json()["detail"]
    assert client.put("/v1/batches").headers["allow"] == "GET, HEAD, POST"
    wrong = client.get("/v1/operations/op1:cancel")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert client.get("/v1/nowhere").json()["status"] == 404


def test_head_is_answered_as_get_without_content(client: TestClient) -> None:
    made = plan(client, graph=chain(3), budget="80%", planner="greedy").json()["id"]
    for path in ("/livez", "/readyz", "/metrics", "/v1/operations", f"/v1/plans/{made}", "/", "/v1/plans/none"):
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        told = set(got.headers) - {"date", "x-request-id"}
        assert {name: head.headers.get(name) for name in told if name != "content-length"} == {
            name: got.headers[name] for name in told if name != "content-length"
        }
        assert "content-length" in head.headers or "content-length" not in got.headers
    etag = client.head(f"/v1/plans/{made}").headers["etag"]
    assert client.head(f"/v1/plans/{made}", headers={"if-none-match": etag}).status_code == 304
    assert client.head("/v1/batches/none:retry").status_code == 405


def test_head_of_a_stream_ends() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": scope["method"].encode(), "more_body": True})
            await anyio.sleep(0.001)

    assert TestClient(HeadMiddleware(endless)).head("/").content == b""


def test_a_fault_of_ours_has_the_name_of_its_request_and_leaves_the_connection(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(DurableJobs, "list", broken)
    answer = client.get("/v1/operations", headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert answer.headers["x-request-id"] == "mine"


def test_there_are_planners_devices_schemas_and_versions(client: TestClient) -> None:
    assert {"auto", "greedy", "mirror"} <= {row["name"] for row in client.get("/v1/planners").json()["planners"]}
    assert all(row["source"] for row in client.get("/v1/devices").json()["devices"])
    assert client.get("/v1/schemas/report").headers["content-type"] == "application/schema+json"
    assert client.get("/v1/schemas/nothing").status_code == 404
    assert client.get("/version").json()["api"] == "v1"
    assert client.get("/livez").status_code == client.get("/readyz").status_code == 200


def test_a_service_that_drains_is_not_ready_and_takes_no_work(tmp_path: Any) -> None:
    from app.api.main import create_app

    app = create_app(Settings(data=tmp_path, drain_seconds=0))
    with TestClient(app) as client:
        app.state.service.drain()
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        answer = plan(client, graph=chain())
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"]


def test_a_framework_file_is_differentiated_unless_it_is_said_otherwise(client: TestClient) -> None:
    native = post_graph(client, one_layer())
    model = client.get(f"/v1/graphs/{native}", headers={"accept": "application/onnx"}).content
    id = client.post("/v1/graphs", content=model, headers={"content-type": "application/onnx"}).json()["id"]
    assert id != native
    assert plan(client, graph_id=native).json()["model"]["nodes"] == 2
    assert plan(client, graph_id=id, differentiate=False).json()["model"]["nodes"] == 2
    assert plan(client, graph_id=id).json()["model"]["nodes"] > 2
