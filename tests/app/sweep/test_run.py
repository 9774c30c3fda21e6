"""Engines and what becomes of their answers."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app.solver import in_process
from app.sweep import executors
from app.sweep.executors import SweepEngine
from app.sweep.items import SweepItem, expand_items, find_models
from app.sweep.run import EMPTY_SUMMARY, run_items, summary_columns
from app.sweep.tasks import report_errors, task_of
from tests.app.sweep.conftest import answer, report


@pytest.fixture
def items(folder: Path) -> list[SweepItem]:
    return expand_items(find_models(folder), ["80%", "60%"], ["greedy"], fields={"iterations": 20})


def rows(items: list[SweepItem], engine: SweepEngine, stop: threading.Event | None = None) -> dict[str, dict[str, Any]]:
    found = [outcome.row for outcome in run_items(items, engine, stop or threading.Event())]
    return {row["key"]: row for row in found}


def test_an_item_that_fails_is_a_state_and_the_rest_goes_on(items: list[SweepItem]) -> None:
    def work(question: dict[str, Any]) -> dict[str, Any]:
        if question["key"] == items[1].key:
            raise MemoryError("no more")
        if question["key"] == items[2].key:
            return answer(status="over_budget")
        return answer()

    with ThreadPoolExecutor(2) as executor:
        found = rows(items, SweepEngine(executor, report_errors(work)))
    assert [found[item.key]["state"] for item in items] == ["succeeded", "failed", "over_budget", "succeeded"]
    assert "MemoryError" in found[items[1].key]["error"]["detail"]
    assert found[items[0].key]["saved"] == 0.4


def test_a_worker_that_dies_fails_its_item_alone(items: list[SweepItem]) -> None:
    class Losing(Executor):
        def submit(self, work: Any, /, question: Any) -> Future[Any]:  # type: ignore[override]
            future: Future[Any] = Future()
            if question["key"] == items[0].key:
                future.set_exception(RuntimeError("the worker is gone"))
            else:
                future.set_result(answer())
            return future

    found = rows(items, executors.executor_engine(Losing()))
    assert [found[item.key]["state"] for item in items] == ["failed", *["succeeded"] * 3]
    assert "the worker is gone" in found[items[0].key]["error"]["detail"]


def test_a_wrong_plan_is_a_failure_of_ours(items: list[SweepItem]) -> None:
    def work(question: dict[str, Any]) -> dict[str, Any]:
        wrong = report() | {"executed": {"status": "different"}}
        return {"report": msgspec.json.encode(wrong), "stopped": False, "seconds": 1.0}

    with ThreadPoolExecutor(1) as executor:
        (outcome,) = run_items(items[:1], SweepEngine(executor, work), threading.Event())
    assert (outcome.row["state"], outcome.row["error"]["status"], outcome.report) == ("failed", 500, None)


def test_a_stop_keeps_what_runs_and_begins_no_more(items: list[SweepItem]) -> None:
    stop, begun = threading.Event(), []

    def work(question: dict[str, Any]) -> dict[str, Any]:
        begun.append(question["key"])
        stop.set()
        time.sleep(0.5)
        return answer() | {"stopped": True}

    with ThreadPoolExecutor(1) as executor:
        found = rows(items, SweepEngine(executor, work, stops=True, ahead=3), stop)
    assert len(begun) < len(items)
    assert [row["state"] for row in found.values()] == ["stopped"] * len(begun)


def test_what_a_stop_had_to_kill_is_stopped_and_no_failure(items: list[SweepItem]) -> None:
    def killed(question: dict[str, Any]) -> dict[str, Any]:
        if question["key"] == items[1].key:
            stop.set()
        return {"problem": {"code": "killed", "status": 500}, "seconds": 1.0}

    stop = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        found = rows(items[:2], SweepEngine(executor, killed, stops=True, ahead=1), stop)
    assert [row["state"] for row in found.values()] == ["failed", "stopped"]


def test_no_more_is_given_to_an_executor_than_it_may_have_ahead(items: list[SweepItem]) -> None:
    submitted: list[Any] = []

    class Slow(ThreadPoolExecutor):
        def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
            submitted.append(given)
            return super().submit(work, *given, **named)

    with Slow(1) as executor:
        for at, _ in enumerate(
            run_items(items, SweepEngine(executor, lambda question: answer(), ahead=2), threading.Event())
        ):
            assert len(submitted) <= at + 2


def test_the_figures_of_a_failure_are_those_of_a_plan_empty() -> None:
    assert list(summary_columns(report())) == list(EMPTY_SUMMARY)


def test_every_engine_makes_the_same_plans(items: list[SweepItem]) -> None:
    def orders(engine: SweepEngine) -> list[Any]:
        found = {
            outcome.item.key: msgspec.json.decode(outcome.report)
            for outcome in run_items(items, engine, threading.Event())
            if outcome.report
        }
        return [(found[item.key]["plan"]["order"], found[item.key]["source"]) for item in items]

    told: list[str] = []
    local = executors.local_engine(2, lambda key, progress: told.append(key), threading.Event())
    with local.executor:
        at_home = orders(local)
    assert set(told) == {item.key for item in items}
    with ThreadPoolExecutor(1) as executor:
        assert orders(executors.executor_engine(executor)) == at_home

    with pytest.MonkeyPatch.context() as patch:  # where no children may be had, as in workers of Dask
        patch.setattr(in_process, "Runner", None)
        patch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
        here = [msgspec.json.decode(executors.solve_locally(task_of(item))["report"]) for item in items]
    assert [(found["plan"]["order"], found["source"]) for found in here] == at_home


def test_a_file_that_changes_meanwhile_is_no_plan(items: list[SweepItem]) -> None:
    Path(items[0].file).write_text("{}")
    with ThreadPoolExecutor(1) as executor:
        found = rows(items, executors.executor_engine(executor))
    assert [found[item.key]["error"] and found[item.key]["error"]["code"] for item in items] == [
        "file_changed",
        "file_changed",
        None,
        None,
    ]
