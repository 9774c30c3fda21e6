"""A graph is read in a child of its own, which may be killed at any moment."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.solver import child_tasks
from tests.app.conftest import chain
from tests.app.held import killed

QUICK: dict[str, Any] = {"planner": "greedy", "iterations": 5}


@pytest.mark.parametrize(("times", "status"), [(1, 201), (2, 503)])
@pytest.mark.parametrize("path", ["/v1/graphs", "/v1/plans", "/v1/curves"])
def test_a_child_that_is_killed_while_it_reads_is_started_once_more(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, times: int, status: int
) -> None:
    monkeypatch.setattr(child_tasks, "main", partial(killed, tmp_path / "begun", times))
    graph = chain(3, f"read {times} {path}")
    budgets = {"budgets": ["90%"]} if path == "/v1/curves" else {}
    answer = client.post(path, json=graph if path == "/v1/graphs" else {"graph": graph, **budgets, **QUICK})
    assert answer.status_code == status, answer.text
    assert (tmp_path / "begun").stat().st_size == 2
    if status == 503:
        assert answer.json()["code"] == "child_died" and "SIGKILL" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0
