"""A batch at a service: the same plans, errors as they were put, and a stop that is passed on."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from app.batch_runs import engines
from app.batch_runs.engines import at_home, at_service, question_of
from app.batch_runs.items import items_of, models_of
from app.client import Client
from tests.app.clients import Recording


@pytest.fixture
def service(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(engines, "POLL_S", 0.05)
    return Client("http://testserver", transport=Recording(client))


def question(folder: Path, **fields: Any) -> dict[str, Any]:
    asked = {"iterations": 20, **fields}
    return question_of(items_of(models_of(folder / "one.json"), ["60%"], ["greedy"], fields=asked)[0])


def asked_there(asked: dict[str, Any], service: Client, **given: Any) -> dict[str, Any]:
    return at_service(asked, **{"client": service, "told": None, "stop": threading.Event(), **given})


def test_a_service_makes_the_plan_that_is_made_here(folder: Path, service: Client) -> None:
    told: list[str] = []
    asked = question(folder)
    there = asked_there(asked, service, told=lambda key, progress: told.append(key))
    again = asked_there(asked, service)  # from what it has stored
    ours, theirs, stored = (msgspec.json.decode(found["report"]) for found in (at_home(asked), there, again))
    assert not there["stopped"]
    assert ours["plan"] == theirs["plan"] == stored["plan"]
    assert ours["layout"] == theirs["layout"] and ours["source"]["nodes"] == theirs["source"]["nodes"]
    assert set(told) <= {asked["key"]}


def test_what_a_service_refuses_is_the_problem_of_the_item(folder: Path, service: Client) -> None:
    found = asked_there(question(folder, loss="nothing"), service)
    assert found["problem"]["status"] == 422 and found["seconds"] >= 0


def test_a_stop_cancels_at_the_service(folder: Path, service: Client) -> None:
    stop = threading.Event()
    asked = question(folder, search_seconds=300)
    asked["fields"] = {**asked["fields"], "planner": "anneal", "iterations": 10**9}
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(asked_there(asked, service, stop=stop)))
    thread.start()
    deadline = time.monotonic() + 90
    while not list(service.operations("running")) and not answers:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stop.set()
    thread.join(90)
    (found,) = answers
    assert found.get("stopped") or found["problem"]["code"] == "stopped"
    assert next(iter(service.operations()))["state"] == "cancelled"
