"""The client against the service: it answers as a plan at home does, and every path has its method."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import jsonschema_rs
import msgspec
import pytest
from starlette.testclient import TestClient

import remat
from app.client.anonymize import HASHED_NAME
from app.client.blocking import AsyncClient, Client
from app.client.transport import BlockingTransport
from tests.app.api.routes.test_measurements import MEASURED
from tests.app.client.test_anonymize import model
from tests.app.clients import Forgetful, Recording, Threaded
from tests.app.conftest import chain, one_layer, onnx_file

URL = "http://service"
PAGE = Path(__file__).parents[3] / "docs" / "guides" / "python-client.md"
#: Operations without a method, and why.
LEFT_OUT = {
    "livez": "for who runs the service; a client that gets any answer knows as much",
    "metrics": "for Prometheus",
}
#: What HTTP says of itself; no operation declares it.
HTTP = {
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "user-agent",
}


#: A plan of a few milliseconds.
QUICK: dict[str, Any] = {"planner": "greedy", "iterations": 5}
BATCH: dict[str, Any] = {"planners": ["greedy"], "seeds": [0], "iterations": 5}


@pytest.fixture
def asking(client: TestClient) -> Client:
    return Client(URL, transport=Recording(client))


def test_the_face_of_the_product_has_the_clients() -> None:
    assert (remat.Client, remat.AsyncClient) == (Client, AsyncClient)


def test_a_service_plans_as_one_does_at_home(asking: Client) -> None:
    fields: dict[str, Any] = {"budget": "60%", "seed": 5, "execute": "no", **QUICK}
    report = asking.plan(chain(5, "at home"), **fields, **{"return": ["plan", "source"]})
    at_home = remat.plan(msgspec.json.encode(chain(5, "at home")), **fields)
    assert report["plan"] == at_home["plan"]
    assert remat.verify(report)["valid"]


def test_who_submits_follows_the_operation_to_its_report(asking: Client) -> None:
    operation = asking.submit(chain(6, "followed"), **QUICK)
    events = list(asking.events(operation["id"]))
    assert events[-1].data["state"] == "succeeded"
    assert {event.data["model"] for event in events if event.event == "state"} == {"followed"}
    assert [int(event.id) for event in events] == sorted({int(event.id) for event in events})
    assert list(asking.events(operation["id"], events[0].id))[-1] == events[-1]
    ended = asking.wait(operation["id"])
    assert asking.report(ended["result"])["checked"] is True
    assert asking.submit(chain(6, "followed"), **QUICK)["id"] == asking.report(ended["result"])["id"]


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_done_twice(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pause(self: BlockingTransport, seconds: float) -> None:
        pass

    monkeypatch.setattr(BlockingTransport, "pause", pause)
    before = {operation["id"] for operation in Client(URL, transport=Recording(client)).operations()}
    wire = Forgetful(client, 2)
    forgetful = Client(URL, transport=wire)
    forgetful.submit(chain(7, "lost"), **QUICK)
    assert len(wire.asked) == 3
    (made,) = {each["id"] for each in forgetful.operations()} - before
    forgetful.wait(made)


def test_pages_join_without_gap_or_repeat(asking: Client) -> None:
    for seed in range(3):
        asking.plan(chain(2, "paged"), seed=seed, **QUICK)
    ids = [operation["id"] for operation in asking.operations(page=2)]
    assert ids == [operation["id"] for operation in asking.operations(page=1000)]
    assert len(ids) >= 3


def test_a_graph_is_kept_once_and_named_by_its_id(asking: Client) -> None:
    record = asking.post_graph(chain(3, "kept"))
    assert asking.graph(record["id"])["name"] == "kept"
    report = asking.plan(graph_id=record["id"], budget="80%", **QUICK)
    assert report["id"] == asking.plan(chain(3, "kept"), budget="80%", **QUICK)["id"]
    with pytest.raises(TypeError, match="graph_id"):
        asking.plan(budget="80%", **QUICK)


def test_a_model_is_called_as_given_or_as_its_file(asking: Client, tmp_path: Path) -> None:
    file = tmp_path / "encoder.onnx"
    file.write_bytes(onnx_file(7))
    assert asking.post_graph(file)["name"] == "encoder"
    assert asking.post_graph(file, name="our encoder")["name"] == "our encoder"
    assert asking.post_graph(file.read_bytes())["name"] == "main_graph"
    report = asking.plan(file, name="our encoder", hide_names=True, budget="90%", **QUICK)
    assert (report["model"]["name"], report["model"]["graph_name"]) == ("our encoder", "main_graph")
    with pytest.raises(TypeError, match="a prepared model has a name"):
        asking.post_graph(asking.prepare(file), name="ours")
    names = {graph["name"] for graph in asking.graphs() if graph["batch"] == 7}
    assert len(names) == 4 and len([name for name in names if HASHED_NAME.fullmatch(name)]) == 1


def test_a_curve_and_a_fit_speak_of_the_callers_model(asking: Client) -> None:
    curve = asking.curve(one_layer(), ["100%", "90%"], loss="loss", hide_names=True, **QUICK)
    whole, less = (point["budget_bytes"] for point in curve["points"])
    assert less == -(-whole * 9 // 10)
    assert curve["model"]["name"] == "one layer"
    assert asking.report(curve["points"][0]["plan"])["checked"]
    fit = asking.fit(one_layer(), budget="64KiB", loss="loss", hide_names=True, search_seconds=1)
    assert fit["size"] > 8
    assert fit["model"]["name"] == "one layer"


def arguments_of(asking: Client) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """For every method arguments that use all it has."""
    graph_id = asking.post_graph(one_layer())["id"]
    plan_id = asking.plan(one_layer(), loss="loss", budget="100%", **QUICK)["id"]
    operation_id = next(each["id"] for each in asking.operations() if each["kind"] == "plan")
    batch_id = asking.batch(graph_ids=[graph_id], budgets=["100%"], loss="loss", timeout=60, **BATCH)["id"]
    buffers = [{"id": "a", "lower": 0, "upper": 1, "size": 8}]
    asking.curve(one_layer(), ["90%"], loss="loss", **QUICK)
    asking.fit(one_layer(), budget="64KiB", loss="loss", search_seconds=1)
    asking.pack(buffers)
    found = {each["kind"]: each["result"] for each in asking.operations() if each["result"]}
    return {
        "prepare": ((one_layer(),), {"batch": 4, "hide_names": True}),
        "post_graph": ((one_layer(),), {"batch": 4, "hide_names": True}),
        "graphs": ((), {"name": "one layer", "format": "native", "created_after": "2026-01-01"}),
        "delete_graph": ((asking.post_graph({**one_layer(), "name": "one to delete"})["id"],), {}),
        "graph": ((graph_id, "application/onnx"), {}),
        "analysis": ((graph_id,), {"start": {"x": 2}, "before": [graph_id]}),
        "transform": ((graph_id, "prune"), {}),
        "plan": (
            (one_layer(),),
            {"loss": "loss", "keep": ["h"], "hide_names": True, "timeout": 60, "batch": 4, **QUICK},
        ),
        "submit": ((), {"graph_id": graph_id, "loss": "loss", "return": ["plan"], **QUICK}),
        "curve": ((one_layer(), ["90%"]), {"loss": "loss", "hide_names": True, **QUICK}),
        "fit": ((one_layer(),), {"budget": "64KiB", "loss": "loss", "hide_names": True, "search_seconds": 1}),
        "pack": ((buffers,), {"capacity": 8, "alignment": 8}),
        "plans": ((), {"graph_id": graph_id, "model": "one layer"}),
        "curves": ((), {"graph_id": graph_id}),
        "fits": ((), {"created_after": "2026-01-01"}),
        "packings": ((), {}),
        "get_curve": ((found["curve"],), {}),
        "get_fit": ((found["fit"],), {}),
        "get_packing": ((found["layout"].rpartition("/")[2],), {}),
        "report": ((plan_id, ["plan", "layout"]), {}),
        "rewritten": ((plan_id, "application/onnx"), {}),
        "source": ((plan_id,), {}),
        "certificate": ((plan_id,), {}),
        "layout": ((plan_id,), {}),
        "timeline": ((plan_id,), {}),
        "add_measurement": ((plan_id, MEASURED), {}),
        "annotate": ((plan_id,), {"tags": ["kept"], "note": "of a test"}),
        "measurements": ((plan_id,), {}),
        "operation": ((operation_id,), {}),
        "operations": (("succeeded", 1), {}),
        "wait": ((operation_id,), {"timeout": 60}),
        "events": ((operation_id, "1"), {}),
        "retry": ((operation_id,), {}),
        "cancel": ((operation_id,), {}),
        "batch": (([one_layer()], ["100%"]), {"graph_ids": [graph_id], "loss": "loss", "timeout": 60, **BATCH}),
        "start_batch": (([graph_id],), {"budgets": ["100%"], "loss": "loss", **BATCH}),
        "batch_status": ((batch_id,), {}),
        "batches": (("succeeded", 1), {}),
        "wait_batch": ((batch_id,), {"timeout": 60}),
        "items": ((batch_id, "succeeded", 1), {}),
        "table": ((batch_id, "parquet", "succeeded"), {}),
        "cancel_batch": ((batch_id,), {}),
        "retry_batch": ((batch_id,), {}),
        "savings": (("model", "day"), {"since": "2026-01-01", "until": "2100-01-01"}),
        "planners": ((), {}),
        "devices": ((), {}),
        "me": ((), {}),
        "schema": (("report",), {}),
        "version": ((), {}),
        "ready": ((), {}),
    }


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")} - {"begin", "close", "aclose"}


def test_methods_and_operations_of_the_document_are_each_others(client: TestClient) -> None:
    wire = Recording(client)
    asking = Client(URL, transport=wire)
    arguments = arguments_of(asking)
    assert set(arguments) == public(Client)
    document = client.get("/openapi.json").json()
    covered = set[str]()
    for name, (given, named) in arguments.items():
        wire.asked.clear()
        result = getattr(asking, name)(*given, **named)
        if inspect.isgenerator(result):
            list(result)
        assert wire.asked or name == "prepare"
        for request, body in wire.asked:
            operation = operation_of(document, request.method, request.url.path)
            declared = {(said["in"], said["name"].lower()) for said in operation.get("parameters", ())}
            sent = {("query", parameter) for parameter in request.url.params}
            sent |= {("header", header.lower()) for header in request.headers if header.lower() not in HTTP}
            assert sent <= declared, (name, sent - declared)
            if body:
                assert_fits(document, operation, request.headers["content-type"], msgspec.json.decode(body))
            covered.add(operation["operationId"])
    every = {operation["operationId"] for path in document["paths"].values() for operation in path.values()}
    assert covered | set(LEFT_OUT) == every
    assert not covered & set(LEFT_OUT)


def operation_of(document: Any, method: str, path: str) -> Any:
    """The one operation that answers this path."""
    found = [
        methods[method.lower()]
        for template, methods in document["paths"].items()
        if method.lower() in methods and re.fullmatch(re.sub(r"\{\w+\}", "[^/:]+", template), path)
    ]
    assert len(found) == 1, (method, path, found)
    return found[0]


def assert_fits(document: Any, operation: Any, media_type: str, body: Any) -> None:
    schema = operation["requestBody"]["content"][media_type]["schema"]
    validator = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    assert validator.is_valid(body), next(validator.iter_errors(body)).message


@pytest.mark.parametrize("given", [{"models": "a.onnx"}, {"graph_ids": "0" * 64}, {"budgets": "90%"}, {"seeds": 1}])
def test_one_entry_in_place_of_a_list_is_refused(asking: Client, given: dict[str, Any]) -> None:
    ((name, entry),) = given.items()
    with pytest.raises(TypeError, match=re.escape(f"write {name}=[{entry!r}]")):
        asking.batch(**{"models": [], **given})


def test_both_clients_have_the_same_methods() -> None:
    assert public(Client) == public(AsyncClient)
    for name in public(Client):
        blocking, waiting = getattr(Client, name), getattr(AsyncClient, name)
        assert inspect.signature(blocking).parameters == inspect.signature(waiting).parameters, name
        assert blocking.__doc__ == waiting.__doc__ and waiting.__doc__, name


def test_the_async_client_does_the_same(client: TestClient) -> None:
    wire = Recording(client)
    arguments = arguments_of(Client(URL, transport=Recording(client)))

    async def ask() -> None:
        async with AsyncClient(URL, transport=Threaded(wire)) as asking:
            for name, (given, named) in arguments.items():
                wire.asked.clear()
                result = getattr(asking, name)(*given, **named)
                if isinstance(result, AsyncIterator):
                    assert [each async for each in result]
                else:
                    assert await result or name == "delete_graph"
                assert wire.asked or name == "prepare"

    anyio.run(ask)


def test_the_examples_of_the_page_run(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wire = Recording(client)
    monkeypatch.setattr(remat, "Client", partial(Client, transport=wire), raising=False)
    monkeypatch.setattr(remat, "AsyncClient", partial(AsyncClient, transport=Threaded(wire)), raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(model())
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(block, {"remat": remat})
    assert len(blocks) == 4
    assert "True\n" in capsys.readouterr().out
