"""A service whose database is gone for half a minute says so, keeps what it works on, and goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from starlette.testclient import TestClient

from app.api.main import create_app
from app.settings import Settings
from app.store.maintenance.integrity_check import check_integrity
from tests.app.api.test_state_machine import Inside
from tests.app.conftest import chain
from tests.app.jobs.here import Pretender, until_stopped
from tests.postgres import Cluster

GONE_S = 30.0
PATIENCE_S = 120.0


class Slow(Inside):
    """Reads at once; solves are as long as they are told to be."""

    def __init__(self) -> None:
        self.solving = Pretender(until_stopped)

    def run(self, task: str, *said: Any) -> Any:
        return self.solving.run(task, *said) if task == "solve" else super().run(task, *said)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


@pytest.mark.heavy
@pytest.mark.parametrize("store_settings", ["postgresql"], indirect=True)
def test_a_database_that_is_gone_for_half_a_minute_is_told_and_nothing_is_lost(
    postgres: Cluster, store_settings: dict[str, Any]
) -> None:
    runner = Slow()
    with patch("app.api.service.service.Runner", lambda *_: runner):
        app = create_app(Settings(workers=1, drain_seconds=0, kept_bytes=0, **store_settings))
    with TestClient(app, raise_server_exceptions=False) as client:

        def ask(seed: int) -> httpx2.Response:
            question = {"graph": chain(2), "budget": "80%", "seed": seed}
            return client.post("/v1/plans", json=question, headers={"prefer": "wait=0"})

        running, waiting = (ask(seed).json()["id"] for seed in (0, 1))
        assert runner.solving.started.wait(PATIENCE_S)
        postgres.stop()
        gone = time.monotonic()
        try:
            while time.monotonic() < gone + GONE_S:
                assert client.get("/readyz").json()["code"] == "unavailable"
                for answer in (client.get(f"/v1/operations/{running}"), ask(2)):
                    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                    assert int(answer.headers["retry-after"]) > 0 and "is unreachable" in answer.json()["detail"]
                assert client.get("/livez").status_code == 200
                time.sleep(1)
        finally:
            postgres.start()
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.get(f"/v1/operations/{running}").json()["state"] == "running"
        for id in (waiting, running):  # the other way round it would begin
            client.post(f"/v1/operations/{id}:cancel")
            until(lambda id=id: client.get(f"/v1/operations/{id}").json()["state"] == "cancelled")  # type: ignore[misc]
        assert client.get(f"/v1/operations/{running}").json()["result"] is not None  # its best so far
        assert runner.solving.runs == 1
        listed = client.get("/v1/operations").json()["operations"]
        assert [operation["id"] for operation in listed] == [waiting, running]  # what was refused is not there
        assert check_integrity(app.state.service.store).faults == []
