"""An operation that is cancelled ends soon, at whichever stage it is: its best so far is kept, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.jobs import stored
from app.store.walk import walk
from bench.service_stops import CASES, Case, Serving

#: Those whose stage is reached within a second.
QUICK = ("queued", "plan, anneal", "layout of buffers")
#: Those whose stage may be over before it is seen; `bench/stops.py --service` looks at them.
SHORT = ("differentiate", "layout", "rewrite", "execute")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    made = Serving(Path(tmp_path_factory.mktemp("cancelled")), kill_seconds=60)
    yield made
    made.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.heavy)
        for case in CASES
        if case.name not in SHORT
    ],
)
def test_a_cancel_is_answered_at_every_stage(serving: Serving, case: Case) -> None:
    ended = serving.cancelled(case)
    operation, service = ended.operation, serving.service
    assert operation.state == "cancelled" and operation.error is None and operation.ended_at is not None
    assert ended.children == []
    if case.best is not None:
        assert (operation.answer is not None) == case.best
    assert stored.waiting(service.store) == [] and not any(page_of(serving, state) for state in ("queued", "running"))
    found = walk(service.store)
    assert found.faults == []
    answered = Serving.ask(serving, Case("after", "plan", case_of("queued").document, {"iterations": 1}), seed=id(case))
    assert serving.until(answered, lambda other: other.finished).state == "succeeded"  # no turn is held for ever


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def page_of(serving: Serving, state: str) -> tuple[object, ...]:
    return serving.service.jobs.list(None, 10, state).operations
