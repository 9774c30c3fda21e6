"""A batch at a service: the same plans, asked as one of the service's batches, which is joined, stopped and gone on."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from starlette.testclient import TestClient

from app.client.blocking import Client, ServiceProblem
from app.store.states import STATES
from app.sweep import executors, service_executor
from app.sweep.executors import SweepEngine, solve_locally
from app.sweep.items import SweepItem, expand_items, find_models
from app.sweep.run import ItemOutcome, run_items
from app.sweep.tasks import task_of
from tests.app.clients import Recording
from tests.app.sweep.conftest import report


@pytest.fixture
def wire(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(service_executor, "POLL_S", 0.05)
    return Recording(client)


@pytest.fixture
def there(wire: Recording) -> Client:
    return Client("http://testserver", transport=wire)


def items(folder: Path, *budgets: str, planner: str = "greedy", **fields: Any) -> list[SweepItem]:
    return expand_items(find_models(folder), budgets or ["80%"], [planner], fields={"iterations": 20, **fields})


def at(there: Client, every: list[SweepItem], folder: Path, **given: Any) -> SweepEngine:
    return executors.service_engine(
        there, every, **{"token": str(folder), "on_progress": None, "stop": threading.Event(), **given}
    )


def asked(engine: SweepEngine, wanted: list[SweepItem], stop: threading.Event | None = None) -> dict[str, ItemOutcome]:
    """Key -> what came of it."""
    found = {one.item.key: one for one in run_items(wanted, engine, stop or threading.Event())}
    engine.executor.shutdown()
    return found


def posted(wire: Recording, path: str) -> list[bytes]:
    return [body for request, body in wire.asked if request.method == "POST" and request.url.path == path]


def batches(wire: Recording, there: Client) -> list[str]:
    """Ids of those that were begun or joined over the wire."""
    every = {batch["id"] for batch in there.batches()}
    paths = [request.url.path.split("/") for request, _ in wire.asked if request.method == "GET"]
    return list(dict.fromkeys(path[3] for path in paths if len(path) == 4 and path[3] in every))


def test_a_service_makes_the_plans_that_are_made_here(folder: Path, there: Client, wire: Recording) -> None:
    every = items(folder)
    found = asked(at(there, every, folder), every)
    assert set(found) == {item.key for item in every}
    for item in every:
        ours, theirs = (
            msgspec.json.decode(report)
            for report in (solve_locally(task_of(item))["report"], found[item.key].report or b"{}")
        )
        assert ours["plan"] == theirs["plan"] and ours["layout"] == theirs["layout"]
        assert ours["source"]["nodes"] == theirs["source"]["nodes"]
    assert (len(posted(wire, "/v1/graphs")), len(posted(wire, "/v1/batches"))) == (2, 1)


def test_who_goes_on_joins_the_batch_and_who_begins_anew_has_another(
    folder: Path, there: Client, wire: Recording
) -> None:
    every = items(folder, "90%", "80%")
    first = asked(at(there, every, folder), every)
    rest = asked(at(there, every, folder), every[3:])
    assert [one.report for one in rest.values()] == [first[every[3].key].report]
    assert len(batches(wire, there)) == 1
    asked(at(there, every, folder / "new"), every)
    assert len(batches(wire, there)) == 2


def test_what_a_service_refuses_or_nobody_can_read_is_the_problem_of_the_item(folder: Path, there: Client) -> None:
    (folder / "bad.json").write_text("{}")
    every = items(folder)
    found = asked(at(there, every, folder), every)
    assert [found[item.key].row["state"] for item in every] == ["failed", "succeeded", "succeeded"]
    every = items(folder, loss="nothing")
    found = asked(at(there, every, folder), every)
    assert [found[item.key].row["error"]["status"] for item in every] == [422] * 3


def test_models_that_ask_for_other_fields_are_batches_of_their_own(folder: Path, there: Client) -> None:
    every = [item for seconds in (30, 31) for item in items(folder, search_seconds=seconds)]
    found = asked(at(there, every, folder), every)
    assert [found[item.key].row["state"] for item in every] == ["succeeded"] * 4


def test_what_means_the_same_is_asked_once(folder: Path, there: Client, wire: Recording) -> None:
    (folder / "again.json").write_bytes((folder / "one.json").read_bytes())
    every = [*items(folder, "0.8"), *items(folder, "80%")]
    found = asked(at(there, every, folder), every)
    assert [found[item.key].row["state"] for item in every] == ["succeeded"] * 6
    (body,) = posted(wire, "/v1/batches")
    assert [len(json.loads(body)[axis]) for axis in ("graph_ids", "budgets")] == [2, 1]


def test_a_batch_larger_than_a_service_takes_is_several(
    folder: Path, there: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, sizes = there.start_batch, []

    def small(graph_ids: list[str], **more: Any) -> dict[str, Any]:
        if len(graph_ids) > 1:
            raise ServiceProblem({"status": 413, "code": "too_many_items"})
        sizes.append(len(graph_ids))
        return start(graph_ids, **more)

    monkeypatch.setattr(there, "start_batch", small)
    every = items(folder, "90%", "80%")
    found = asked(at(there, every, folder), every)
    assert sizes == [1, 1] and [found[item.key].row["state"] for item in every] == ["succeeded"] * 4


class Slow:
    """A service that runs the first item of a batch and never ends it, but when it is told to stop."""

    def __init__(self) -> None:
        self.items_there: list[dict[str, Any]] = []
        self.said: list[str] = []

    def prepare(self, data: bytes, **shapes: Any) -> SimpleNamespace:
        return SimpleNamespace(restore=lambda said: said)

    def post_graph(self, home: Any) -> dict[str, Any]:
        return {"id": "graph"}

    def start_batch(self, graph_ids: list[str], budgets: list[str], **asked: Any) -> dict[str, Any]:
        at = "2026-01-01T00:00:00Z"
        self.items_there = self.items_there or [
            {
                "number": n,
                "graph_id": graph_ids[0],
                "budget": budget,
                "planner": "greedy",
                "seed": 0,
                "error": None,
                "state": "queued" if n else "running",
                "plan": None,
                "operation": None if n else "/v1/operations/op",
                "cached": False,
                "started_at": at,
                "ended_at": at,
            }
            for n, budget in enumerate(budgets)
        ]
        return self.batch_status("ba")

    def batch_status(self, id: str) -> dict[str, Any]:
        counts = Counter(dict.fromkeys(STATES, 0)) + Counter(item["state"] for item in self.items_there)
        done = sum(counts[state] for state in service_executor.FINISHED)
        whole = {"id": "ba", "items": {state: counts[state] for state in STATES}, "total": len(self.items_there)}
        return whole | {"done": done, "state": "cancelled" if done == len(self.items_there) else "running"}

    def items(self, id: str, state: str, after: int | None) -> list[dict[str, Any]]:
        return [dict(item) for item in self.items_there if item["state"] == state]

    def operations(self, state: str) -> list[dict[str, Any]]:
        return [{"id": "op", "stage": "plan", "progress": None}]

    def cancel_batch(self, id: str) -> None:
        self.said.append("cancel")
        for item in self.items_there:
            item.update(state="cancelled", plan="/v1/plans/best" if item["state"] == "running" else None)

    def retry_batch(self, id: str) -> None:
        self.said.append("retry")
        if len(self.said) == 2:
            raise ServiceProblem({"status": 409, "code": "batch_ending"})
        for item in self.items_there:
            item.update(state="queued" if item["number"] else "running", plan=None)

    def wait_batch(self, id: str) -> None:
        self.said.append("wait")

    def report(self, plan: str, sections: Any) -> dict[str, Any]:
        return report()


def test_a_stop_cancels_at_the_service_and_who_goes_on_has_it_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_executor, "POLL_S", 0.01)
    (folder / "two.json").unlink()
    every, there = items(folder, "90%", "80%", "70%"), Slow()
    for said in (["cancel"], ["cancel", "retry", "wait", "retry", "cancel"]):
        stop = threading.Event()
        found = asked(
            at(cast(Client, there), every, folder, on_progress=lambda *_, stop=stop: stop.set(), stop=stop), every, stop
        )
        assert [one.row["state"] for one in found.values() if one.report] == ["stopped"]  # the best so far
        assert there.said == said


def test_a_service_that_is_gone_is_said_of_every_item_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Client("http://127.0.0.1:1", retries=1)
    monkeypatch.setattr("app.client.transport.FIRST_PAUSE_S", 0.001)
    every = items(folder, "90%", "80%", "70%")
    found = asked(at(there, every, folder), every)
    assert [found[item.key].row["error"]["code"] for item in every] == ["unreachable"] * 6
