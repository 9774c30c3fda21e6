"""A child process can be stopped, limited and killed, and its end is told."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from app.errors import ProblemDetails, SolveFailed
from app.solver import child_tasks
from app.solver.child_process import POLL_S, Runner
from graph.limits import Limits
from tests.app.conftest import chain
from tests.app.solver import child_functions

GIB = 1 << 30
RUNNER = Runner(memory_bytes=8 * GIB, kill_seconds=15)


def payload(**fields: Any) -> dict[str, Any]:
    return {"data": json.dumps(chain()).encode(), "fields": fields, "limits": asdict(Limits())}


def test_a_solve_tells_its_stages_and_gives_every_section() -> None:
    told: list[Mapping[str, Any]] = []
    answer = RUNNER.run("solve", payload(budget="60%", iterations=50), 60, told.append)
    stages = list(dict.fromkeys(message["stage"] for message in told))
    assert stages == ["read", "differentiate", "plan", "layout", "rewrite", "execute"]
    assert set(answer.result["sections"]) == {"timeline", "layout", "explain", "source", "graph", "search"}
    assert not answer.hit_deadline


def test_a_problem_comes_back_as_it_was_put() -> None:
    with pytest.raises(ProblemDetails) as caught:
        RUNNER.run("solve", payload(loss="nothing"), 60)
    assert caught.value.body["status"] == 422


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(child_tasks, "main", child_functions.main)
    return lambda name, runner=RUNNER, seconds=30.0, stop=None, **fields: runner.run(
        "here", {"name": name, **fields}, seconds, stop=stop
    )


def test_a_stop_gives_the_best_so_far(run: Callable[..., Any]) -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    answer = run("heeds", stop=stop)
    assert (answer.result, answer.hit_deadline) == ("best so far", False)


def test_a_deadline_hurries_the_child(run: Callable[..., Any]) -> None:
    answer = run("heeds", seconds=0.2)
    assert (answer.result, answer.hit_deadline) == ("best so far", True)


def test_a_child_that_does_not_heed_is_killed(run: Callable[..., Any]) -> None:
    began = time.monotonic()
    with pytest.raises(SolveFailed, match="killed"):
        run("sleeps", runner=Runner(8 * GIB, 0.2), seconds=0.1)
    assert time.monotonic() - began < 20


def test_a_child_that_dies_says_by_which_signal(run: Callable[..., Any]) -> None:
    with pytest.raises(SolveFailed, match="SIGSEGV"):
        run("dies")


def test_memory_past_the_limit_is_a_problem_that_names_the_setting(run: Callable[..., Any]) -> None:
    with pytest.raises(ProblemDetails) as caught:
        run("devours", runner=Runner(GIB // 2, 1.0))
    assert (caught.value.body["code"], caught.value.body["status"]) == ("out_of_memory", 422)
    assert caught.value.body["limit"]["name"] == "REMAT_SOLVE_MEMORY_BYTES"


def test_memory_that_is_filled_counts_and_addresses_do_not(run: Callable[..., Any]) -> None:
    small = Runner(128 * 2**20, 1.0)
    with pytest.raises(ProblemDetails) as caught:
        run("fills", runner=small, mib=192, held_s=30)
    assert caught.value.body["limit"] == {"name": "REMAT_SOLVE_MEMORY_BYTES", "value": small.memory_bytes}
    assert run("fills", runner=small, mib=64, held_s=5 * POLL_S).result == 64 * 2**20
    assert run("reserves", runner=small, mib=384).result == 384 * 2**20


def test_nesting_without_end_is_a_problem(run: Callable[..., Any]) -> None:
    with pytest.raises(ProblemDetails) as caught:
        run("nests")
    assert caught.value.body["code"] == "too_deep"


def test_a_child_imports_nothing_more_for_a_solve() -> None:
    code = """
import json, sys
import app.solver.preload
from app.solver.child_tasks import SECTIONS
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
before = set(sys.modules)
asked = {"planner": "anneal", "iterations": 5, "budget": "70%", "return": ["plan", *SECTIONS]}
solve(sys.stdin.buffer.read(), parse_request(asked))
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(chain()).encode(), capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert json.loads(ran.stdout) == []
