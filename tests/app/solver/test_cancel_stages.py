"""An operation that is cancelled ends, at whichever stage it is: its best so far is kept, and nothing is left.

A child that has told where it is waits there for the stop, so that no stage is over before the cancel comes:

    child ──"layout"──▶ test sees it ──cancel──▶ worker ──stop──▶ child goes on
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.solver import child_tasks
from app.store.maintenance.integrity_check import check_integrity
from bench.generators import layered
from bench.service_stops import LONG, Case, Serving, buffers, forward
from graph.cancellation import GRACE_CHECKS
from tests.app.held import NEVER_S, Held

TRAINED = {**LONG, "planner": "greedy", "loss": "loss", "execute": "yes"}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(Path(tmp_path_factory.mktemp("cancelled")), kill_seconds=NEVER_S)
    yield made
    made.close()


def cancelled(serving: Serving, case: Case, monkeypatch: pytest.MonkeyPatch, deaf: bool = False) -> None:
    """Hold the case at its stage, cancel it, and look at what is left; the next case needs the one worker's turn."""
    with monkeypatch.context() as patched:
        stage = "plan" if case.stage in ("queued", "between") else case.stage
        patched.setattr(child_tasks, "main", Held(stage, case.improved, deaf).main)
        ended = serving.cancelled(case)
    operation, service = ended.operation, serving.service
    assert operation.state == "cancelled" and operation.error is None and operation.ended_at is not None
    assert ended.children == []
    assert (operation.answer is not None) == case.best
    assert not any(page_of(serving, state) for state in ("queued", "running"))
    assert check_integrity(service.store).faults == []


def page_of(serving: Serving, state: str) -> tuple[object, ...]:
    return serving.service.jobs.list(None, 10, state).operations


@pytest.mark.parametrize("stage", ["read", "differentiate", "plan"])
def test_a_cancel_before_the_first_plan_of_a_large_model_keeps_nothing(
    serving: Serving, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(
        serving, Case(f"large, {stage}", stage, lambda: forward(GRACE_CHECKS, 4, 4), TRAINED, best=False), monkeypatch
    )


@pytest.mark.parametrize("stage", ["plan", "layout", "rewrite", "execute"])
def test_a_cancel_keeps_the_best_so_far(serving: Serving, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    improved = stage == "plan"
    cancelled(serving, Case(stage, stage, lambda: forward(5, 4, 4), TRAINED, improved=improved), monkeypatch)


def test_a_child_that_hears_nothing_before_its_first_plan_is_killed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(serving, Case("deaf", "plan", lambda: layered(10), LONG, best=False), monkeypatch, deaf=True)


@pytest.mark.parametrize("stage", ["queued", "between"])
def test_a_cancel_ends_what_waits_for_its_turn(serving: Serving, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled(serving, Case(stage, stage, lambda: forward(GRACE_CHECKS, 4, 4), TRAINED, best=False), monkeypatch)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "planner",
    [
        "auto",
        "anneal",
        "search_order",
        "blocks",
        "moment",
        "milp",
        "cp_sat",
        "exact",
        "min_cut",
        "revolve",
        "dtr",
        "evict",
        "search_evictions",
    ],
)
def test_a_cancel_is_heard_by_every_planner_that_searches(
    serving: Serving, planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**LONG, "planner": planner}
    cancelled(serving, Case(planner, "plan", lambda: layered(40), fields, improved=True), monkeypatch)


def test_a_curve_that_is_cancelled_has_a_plan_in_every_point(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"budgets": ["90%", "80%"], "search_seconds": 60.0}
    cancelled(serving, Case("curve", "plan", lambda: layered(40), fields, "curve", improved=True), monkeypatch)


def test_a_fit_that_is_cancelled_has_the_largest_size_so_far(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"budget": "200MiB", "loss": "loss", "search_seconds": 60.0, "planner": "greedy"}
    cancelled(serving, Case("fit", "plan", lambda: forward(5, 4, 4), fields, "fit", improved=True), monkeypatch)


def test_buffers_that_are_cancelled_have_the_smallest_arena_so_far(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case("buffers", "layout", lambda: buffers(50), {"search_seconds": 60.0}, "layout")
    cancelled(serving, case, monkeypatch)


def test_the_worker_is_free_after_a_cancel(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled(serving, Case("before", "read", lambda: layered(10), LONG, best=False), monkeypatch, deaf=True)
    after = Case("after", "", lambda: layered(10), {"iterations": 1, "planner": "greedy"})
    assert serving.until(serving.ask(after), lambda other: other.finished).state == "succeeded"
