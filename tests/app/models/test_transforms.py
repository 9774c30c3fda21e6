"""Analysis of stored graphs, and passes over them, over HTTP."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from app import catalogue
from app.api.wire import openapi
from app.models.transforms import PASS_FUNCTIONS, Pass, parse_pass
from planner.errors import BadRequest
from tests.app.conftest import one_layer
from tests.graph.ssa.programs import program
from tests.test_docs import page

JSON = {"content-type": "application/json"}


def mutable(*lines: str, outputs: list[str], **rest: Any) -> dict[str, Any]:
    """A program of opaque ops `a: x -> y` on names of four bytes, x given."""
    return program(*lines, given={"x": "input"}, outputs=outputs, **rest)


def post(client: TestClient, document: dict[str, Any]) -> str:
    answer = client.post("/v1/graphs", json=document)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def transformed(client: TestClient, id: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/graphs/{id}:transform", json=asked)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/graphs/{answer.json()['id']}"
    return dict(answer.json())


def told(client: TestClient, id: str, **asked: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/graphs/{id}:transform", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def drawn(client: TestClient, id: str) -> list[str]:
    answer = client.get(f"/v1/graphs/{id}", headers={"accept": "application/vnd.remat.mutable+json"})
    assert answer.headers["content-type"] == "application/vnd.remat.mutable+json"
    assert answer.json()["naming"] == "mutable"
    return [f"{' '.join(node['inputs'])} -> {' '.join(node['outputs'])}" for node in answer.json()["nodes"]]


def code(client: TestClient, id: str, **asked: Any) -> tuple[int, str]:
    answer = client.post(f"/v1/graphs/{id}:transform", json=asked)
    return answer.status_code, answer.json()["code"]


@pytest.fixture
def rewritten(client: TestClient) -> str:
    """y is written twice; the first is read by b, the second handed out."""
    return post(client, mutable("a: x -> y", "b: y -> z", "c: y -> y", "d: y -> u", outputs=["y", "z"]))


def test_a_mutable_document_goes_out_under_its_own_names(client: TestClient, rewritten: str) -> None:
    assert drawn(client, rewritten) == ["x -> y", "y -> z", "y -> y", "y -> u"]
    again = client.get(f"/v1/graphs/{rewritten}", headers={"accept": "application/vnd.remat.mutable+json"}).json()
    assert post(client, again) == rewritten


def test_the_analysis_tells_versions_lives_peak_and_lints(client: TestClient, rewritten: str) -> None:
    answer = client.get(f"/v1/graphs/{rewritten}/analysis")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    jsonschema_rs.validate(resolved("Analysis"), found)
    versions = found["versions"]
    last = versions["value"].index("y/2")
    assert (versions["name"][last], versions["version"][last], versions["producer"][last]) == ("y", 2, [2, 0])
    assert versions["consumers"][versions["value"].index("y")] == [[1, 0], [2, 0]]
    assert versions["final"] == {"x": 0, "y": 2, "z": 1, "u": 1}
    assert versions["undefined"] == [["x", 0]]
    assert versions["dead"] == ["d"]
    assert [finding["code"] for finding in found["lints"]] == ["dead_node"]
    assert found["memory"]["baseline"]["peak_bytes"] > 0
    assert found["memory"]["holders"]
    assert ["u", "d"] in found["lives"]["free_after"]
    same = client.get(f"/v1/graphs/{rewritten}/analysis", headers={"if-none-match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")


def resolved(name: str) -> dict[str, Any]:
    """A component of the OpenAPI document as a schema of its own."""

    def moved(schema: Any) -> Any:
        if isinstance(schema, dict):
            return {k: v.replace(openapi.REF, "#/$defs/") if k == "$ref" else moved(v) for k, v in schema.items()}
        return [moved(entry) for entry in schema] if isinstance(schema, list) else schema

    return {"$ref": f"#/$defs/{name}", "$defs": moved(openapi.components())}


def test_numbers_go_on_from_graphs_that_run_before_or_from_what_is_said(client: TestClient, rewritten: str) -> None:
    first = post(client, mutable("f: -> x", "g: x -> x", outputs=["x"]) | {"values": [{"name": "x", "bytes": 4}]})
    numbers = client.get(f"/v1/graphs/{rewritten}/analysis?before={first}").json()["versions"]
    assert numbers["final"] == {"x": 2, "y": 2, "z": 1, "u": 1}
    assert numbers["undefined"] == []
    said = client.get(f"/v1/graphs/{rewritten}/analysis?start=x=3&start=y=5").json()["versions"]
    assert said["final"] == {"x": 3, "y": 7, "z": 1, "u": 1}
    for wrong in ("start=x", "start=x=-1", "start=x=99999999999999999999", "before=nope", "other=1"):
        assert client.get(f"/v1/graphs/{rewritten}/analysis?{wrong}").status_code in (404, 422)


def test_a_version_is_renamed_where_it_is_written_read_or_by_name(client: TestClient, rewritten: str) -> None:
    expected = ["x -> q", "q -> z", "q -> y", "y -> u"]
    by_output = transformed(client, rewritten, **{"pass": "rename", "node": "a", "output": 0, "to": "q"})
    assert drawn(client, by_output["id"]) == expected
    by_name = transformed(client, rewritten, **{"pass": "rename", "value": "y@1", "to": "q"})
    by_input = transformed(
        client, rewritten, **{"pass": "rename", "node": "b", "input": 0, "to": "q", "from_producer": True}
    )
    assert by_name["id"] == by_input["id"] == by_output["id"]
    assert drawn(client, rewritten)[0] == "x -> y"  # the graph itself stays


def test_a_renaming_that_cannot_be_is_refused_with_its_own_code(client: TestClient, rewritten: str) -> None:
    rename = {"pass": "rename", "to": "q"}
    assert code(client, rewritten, **rename, node="b", input=0) == (422, "several_readers")
    assert code(client, rewritten, **rename, node="a", input=0, from_producer=True) == (422, "no_producer")
    assert code(client, rewritten, **rename, value="y@9") == (422, "undefined_value")
    assert code(client, rewritten, **rename, node="nobody", output=0) == (422, "unknown_node")
    assert code(client, rewritten, **rename, node="a", output=7) == (422, "unknown_id")
    assert code(client, rewritten, **{**rename, "to": "z"}, value="y@1") == (422, "name_taken")


def test_dead_nodes_go(client: TestClient, rewritten: str) -> None:
    assert drawn(client, transformed(client, rewritten, **{"pass": "prune"})["id"]) == ["x -> y", "y -> z", "y -> y"]


def test_a_part_is_extracted(client: TestClient, rewritten: str) -> None:
    made = transformed(
        client, rewritten, **{"pass": "extract", "outputs": ["u"], "given": {"y@2": "in"}, "prefix": "p/"}
    )
    assert drawn(client, made["id"]) == ["in -> p/u"]
    assert code(client, rewritten, **{"pass": "extract", "outputs": []}) == (422, "bad_field")
    (finding,) = client.post(f"/v1/graphs/{rewritten}:transform", json={"pass": "extract"}).json()["errors"]
    assert (finding["path"], finding["expected"]) == ("outputs", "a value for this field")
    for wrong, expected in (({"pass": "prune", "deep": 1}, "no such field"), ({"pass": "none"}, "'rename', 'prune', ")):
        (finding,) = client.post(f"/v1/graphs/{rewritten}:transform", json=wrong).json()["errors"]
        assert finding["expected"].startswith(expected)


def test_a_border_is_an_answer(client: TestClient, rewritten: str) -> None:
    found = told(client, rewritten, **{"pass": "boundary", "nodes": ["b", "c"]})
    jsonschema_rs.validate(resolved("QueryResult"), found)
    assert found["inputs"] == [{"value": "y", "name": "y", "version": 1}]
    assert [(entry["name"], entry["version"]) for entry in found["outputs"]] == [("z", 1), ("y", 2)]


def test_names_of_a_scope_are_inferred(client: TestClient) -> None:
    #   outside: x, y, z, u       inside: t = f(x), y = g(t, y), s = h(y)
    id = post(client, mutable("a: x -> y", "b: y -> z", "c: z -> u", outputs=["u"]))
    ops = [
        {"inputs": ["x"], "outputs": ["t"]},
        {"inputs": ["t", "y"], "outputs": ["y"]},
        {"inputs": ["y"], "outputs": ["s"]},
    ]
    found = told(client, id, **{"pass": "infer_bindings", "ops": ops, "name": "body"})
    jsonschema_rs.validate(resolved("QueryResult"), found)
    assert found["scope"] == {
        "handle": "body/scope",
        "bindings": {"x": "x", "y": "y"},
        "inputs": ["x", "y"],
        "outputs": ["y"],
        "local": ["t", "s"],
    }
    assert code(client, id, **{"pass": "infer_bindings", "ops": ops[1:]}) == (422, "undefined_value")
    taken = [{"inputs": [], "outputs": ["body/scope"]}]
    found = told(client, id, **{"pass": "infer_bindings", "ops": taken, "name": "body"})
    assert found["scope"]["handle"] == "body/scope/1"


def test_statuses_follow_copies_or_a_table(client: TestClient) -> None:
    document = mutable("Relu: x -> a", "CopyGPUToCPU: a -> b", outputs=["b"])
    id = post(client, document)
    assert told(client, id, **{"pass": "status"})["status"] == {"x@0": "gpu", "a@1": "gpu", "b@1": "cpu"}
    table = {"pass": "status", "fixed": {"CopyGPUToCPU": ["nchw", "nhwc"]}}
    assert told(client, id, **table)["status"] == {"x@0": "nchw", "a@1": "nchw", "b@1": "nhwc"}
    assert code(client, id, **{"pass": "status", "known": {"x": "cpu"}}) == (422, "status_conflict")
    assert code(client, id, **{"pass": "status", "known": {"x": None}}) == (422, "null_status")
    assert code(client, id, **{"pass": "status", "known": {"nope": "cpu"}}) == (422, "undefined_value")
    assert code(client, id, **{"pass": "status", "fixed": {}}) == (422, "unknown_status")


def test_copies_go_in_and_out(client: TestClient) -> None:
    document = mutable("r: x -> a", "s: x -> b", outputs=["a", "b"])
    document["nodes"][0]["annotations"] = {"device": "gpu:1"}
    made = transformed(client, post(client, document), **{"pass": "insert_copies", "style": "caffe2"})
    assert drawn(client, made["id"]) == ["x -> x_cuda_1", "x_cuda_1 -> a", "x -> b"]
    assert made["devices"] == {"x": "cpu", "a": "gpu:1", "b": "cpu"}
    there = mutable("CopyGPUToCPU: x -> a", "CopyCPUToGPU: a -> b", "N: b -> c", outputs=["c"])
    assert drawn(client, transformed(client, post(client, there), **{"pass": "fuse_copies"})["id"]) == ["x -> c"]


def test_groups_and_reshapes_are_taken_out(client: TestClient) -> None:
    document = mutable("r: x -> r", "Shape: r -> s", "Reshape: r s -> rr", "FC: rr -> f", outputs=["f"])
    id = post(client, document)
    assert drawn(client, transformed(client, id, **{"pass": "remove_reshapes"})["id"]) == ["x -> r", "r -> f"]
    kept = transformed(client, id, **{"pass": "remove_reshapes", "readers": ["Gemm"]})
    assert kept["id"] == id
    group = {"pass": "replace_by_identity", "nodes": ["Shape", "Reshape"]}
    assert drawn(client, transformed(client, id, **group)["id"]) == ["x -> r", "r -> f"]
    assert code(client, id, **{**group, "nodes": ["FC"]}) == (422, "not_isolated")


def test_identities_go_and_versions_get_names(client: TestClient, rewritten: str) -> None:
    assert transformed(client, rewritten, **{"pass": "remove_identities"})["id"] == rewritten
    made = transformed(client, rewritten, **{"pass": "version_names"})
    assert made["names"]["y@2"] == "y_2"
    assert drawn(client, made["id"])[2] == "y_1 -> y_2"


def test_a_stored_graph_is_differentiated(client: TestClient) -> None:
    id = post(client, one_layer())
    asked = {"pass": "differentiate", "loss": "loss", "differentiate": {"with_respect_to": ["w1"]}}
    made = transformed(client, id, **asked)
    assert "gradients" not in made
    (pair,) = transformed(client, id, **asked, gradient_events=True)["gradients"]["pairs"]
    assert pair["value"] == "w1" and pair["finalised_by"].startswith("grad/")
    found = client.get(f"/v1/graphs/{made['id']}/analysis").json()
    ((value, gradient),) = found["versions"]["gradients"]
    assert value == ["w1", 0] and gradient[1] == 1
    assert code(client, id, **{"pass": "differentiate", "differentiate": {"of": ["nope"]}}) == (422, "undefined_value")
    assert code(client, id, **{"pass": "differentiate", "differentiate": {"odd": 1}})[0] == 422


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"pass": "shuffle"},
        {"pass": "prune", "more": 1},
        {"pass": "rename", "to": "q"},
        {"pass": 3},
        {"pass": "rename", "to": "q", "value": "y", "node": "a", "output": 0},
        {"pass": "rename", "to": "", "value": "y"},
        {"pass": "rename", "to": "q", "node": "a", "output": 0, "input": 0},
        {"pass": "boundary", "nodes": "a"},
        {"pass": "rename", "to": "q", "node": "a", "output": 0, "from_producer": True},
        {"pass": "boundary"},
        {"pass": "status", "fixed": {"a": ["x"]}},
        {"pass": "rename", "to": "q", "node": "a", "output": "0"},
    ],
)
def test_a_pass_asked_for_wrongly_is_refused_with_the_field(
    client: TestClient, rewritten: str, asked: dict[str, Any]
) -> None:
    answer = client.post(f"/v1/graphs/{rewritten}:transform", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_field")
    assert all(finding["path"] for finding in answer.json()["errors"])
    with pytest.raises(BadRequest):
        parse_pass(asked)


def test_bodies_and_ids_that_are_none_are_refused(client: TestClient, rewritten: str) -> None:
    path = f"/v1/graphs/{rewritten}:transform"
    assert client.post(path, content=b"{", headers=JSON).status_code == 400
    assert client.post(path, content=b"[" * 100_000, headers=JSON).status_code in (400, 422)
    assert client.post(path, content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert client.post("/v1/graphs/nope:transform", json={"pass": "prune"}).status_code == 404
    assert client.get("/v1/graphs/nope/analysis").status_code == 404
    refused = client.get(path)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_an_idempotency_key_is_bound_to_its_pass(client: TestClient, rewritten: str) -> None:
    key = {"idempotency-key": "the one pass"}
    path = f"/v1/graphs/{rewritten}:transform"
    first = client.post(path, json={"pass": "prune"}, headers=key)
    assert client.post(path, json={"pass": "prune"}, headers=key).json() == first.json()
    assert client.post(path, json={"pass": "fuse_copies"}, headers=key).status_code == 409


def test_every_pass_is_in_the_schema_and_on_the_service_page() -> None:
    schema = catalogue.schema("transform")
    named = set(schema["discriminator"]["mapping"])
    assert len(named) == len(PASS_FUNCTIONS) == len(Pass.__subclasses__())
    assert not [name for name in named if f"## {name}\n" not in page("reference/transforms.md")]


def test_recurrent_nets_are_expanded_made_again_cut_and_told(client: TestClient) -> None:
    shapes = {"x": [12, 2, 4], "w": [1, 16, 4], "r": [1, 16, 4]}
    values: list[dict[str, Any]] = [
        {"name": name, "shape": shape, "dtype": "float32", "role": "input" if name == "x" else "parameter"}
        for name, shape in shapes.items()
    ]
    lstm = {"name": "cell", "op": "LSTM", "inputs": [*shapes], "outputs": ["", "h"], "attributes": {"hidden_size": 4}}
    mean = {"name": "mean", "op": "ReduceMean", "inputs": ["h"], "outputs": ["loss"], "attributes": {"keepdims": 0}}
    document = {"format": "remat/1", "values": values, "nodes": [lstm, mean], "outputs": ["loss"]}
    scan = transformed(client, post(client, document), **{"pass": "expand_recurrent"})["id"]
    step = transformed(client, scan, **{"pass": "differentiate", "loss": "loss"})["id"]
    (net,) = client.get(f"/v1/graphs/{step}/analysis").json()["recurrent"]
    names = net["hints"]["gates"]
    again = transformed(client, step, **{"pass": "recompute_steps", "node": net["node"], "names": names})
    (told_again,) = client.get(f"/v1/graphs/{again['id']}/analysis").json()["recurrent"]
    assert told_again["memory"]["held_bytes"] < net["memory"]["held_bytes"]
    unknown = {"pass": "recompute_steps", "node": "cell", "names": ["nobody"]}
    assert code(client, step, **unknown) == (422, "recompute_unknown")
    parts = transformed(client, step, **{"pass": "cut_over_time", "parts": 4})["id"]
    assert len(client.get(f"/v1/graphs/{parts}/analysis").json()["recurrent"]) == 4


@pytest.mark.parametrize(
    ("document", "found"),
    [({"pass": "prnue"}, "pass: found 'prnue'"), ({}, "pass: found nothing"), ({"pass": 3}, "pass: found 3")],
)
def test_an_unknown_pass_is_named_with_the_known_ones(document: dict[str, Any], found: str) -> None:
    with pytest.raises(BadRequest, match=f"{found}, expected 'rename', 'prune', "):
        parse_pass(document)
