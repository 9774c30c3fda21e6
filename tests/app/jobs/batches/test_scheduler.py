"""Items of batches go through the queue a few at a time, each once, whoever dies."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from app.api.schemas.batch_request import BatchRequest, parse_batch
from app.errors import Busy, Conflict, SolveFailed
from app.jobs.batches import repository
from app.jobs.batches import scheduler as feeder_module
from app.jobs.batches.operations import JobsWithBatches
from app.jobs.batches.repository import BatchOwner, BatchRecord
from app.jobs.batches.scheduler import ITEMS_AHEAD, BatchScheduler
from app.jobs.interface import SolveRequest
from app.jobs.worker import Worker
from app.store.batch_tables import batches, items
from app.store.maintenance.deletion import delete_graph
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from app.store.records import now, request_key, save_graph, save_plan
from app.store.tables import operations, workers
from tests.app.jobs.here import Here, Pretender, finished, until_stopped
from tests.app.store.test_store import aged
from tests.app.stores import GRAPH_ID, graph_read, solved

PATIENCE_S = 90.0
NOBODY = BatchOwner()


def asked_of(count: int, **fields: Any) -> BatchRequest:
    return parse_batch({"graph_ids": [GRAPH_ID], "seeds": list(range(count)), **fields}, 10_000)


def begun(jobs: Here, count: int, owner: BatchOwner = NOBODY, **fields: Any) -> BatchRecord:
    open_items = jobs.context.settings.open_items
    return repository.create(jobs.context.store, asked_of(count, **fields), owner, None, "body", open_items)


def until(jobs: Here, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def ended(jobs: Here, batch: BatchRecord) -> BatchRecord:
    until(jobs, lambda: repository.find(jobs.context.store, batch.id).finished)
    return repository.find(jobs.context.store, batch.id)


def solves(jobs: Here) -> Counter[str]:
    """Question -> how often it became an operation."""
    with jobs.context.store.reading() as connection:
        return Counter(connection.scalars(sa.select(operations.c.key)))


def stopping_once(runner: Pretender) -> Callable[..., str]:
    """The first solve runs until it is stopped, the others are done at once."""
    return lambda stop, tell: until_stopped(stop, tell) if runner.runs == 1 else f"plan {runner.runs}"


def test_every_item_is_solved_once_and_the_batch_ends_with_the_last(started: Any) -> None:
    jobs = started(Pretender())
    batch = ended(jobs, begun(jobs, 11))
    assert (batch.state, batch.counts) == ("succeeded", {"succeeded": 11})
    assert sorted(solves(jobs).values()) == [1] * 11
    found = check_integrity(jobs.context.store)
    assert (found.faults, found.batches, found.items) == ([], 1, 11)


def test_a_few_items_wait_at_a_time_and_whoever_asks_goes_before_them(started: Any) -> None:
    runner = Pretender()
    runner.act = stopping_once(runner)
    jobs = started(runner, queue=0)
    batch = begun(jobs, 30)
    runner.started.wait(PATIENCE_S)
    until(jobs, lambda: repository.find(jobs.context.store, batch.id).counts.get("running") == ITEMS_AHEAD)
    assert sum(solves(jobs).values()) == ITEMS_AHEAD
    mine = jobs.submit(SolveRequest("mine", GRAPH_ID, {})).id
    first = repository.items_of(jobs.context.store, batch.id, -1, 30)
    jobs.cancel(next(item["operation_id"] for item in first if jobs.status(item["operation_id"]).state == "running"))
    began = str(finished(jobs, mine).started_at)
    ended(jobs, batch)
    after = [
        item["started_at"]
        for item in repository.items_of(jobs.context.store, batch.id, -1, 30)
        if item["number"] > ITEMS_AHEAD
    ]
    assert began <= min(after)


def test_items_leave_one_slot_to_whoever_asks(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner, workers=3)
    batch = begun(jobs, 10)
    until(jobs, lambda: runner.runs == 2)
    assert repository.find(jobs.context.store, batch.id).counts["running"] == 2
    mine = jobs.submit(SolveRequest("mine", GRAPH_ID, {})).id
    until(jobs, lambda: jobs.status(mine).state == "running")
    jobs.cancel(mine)
    repository.cancel(jobs.context.store, batch.id)
    ended(jobs, batch)


def test_open_items_of_a_tenant_are_limited(started: Any) -> None:
    jobs = started(Pretender(until_stopped), open_items=12)
    batch = begun(jobs, 10)
    with pytest.raises(Busy, match="REMAT_OPEN_ITEMS"):
        begun(jobs, 3)
    repository.cancel(jobs.context.store, batch.id)
    ended(jobs, batch)
    begun(jobs, 3)


def test_a_batch_goes_on_where_a_stop_of_the_service_left_it(started: Any) -> None:
    runner = Pretender()
    runner.act = lambda stop, tell: until_stopped(stop, tell) if runner.runs == 3 else f"plan {runner.runs}"
    jobs = started(runner)
    batch = begun(jobs, 9)
    until(jobs, lambda: runner.runs == 3)
    again = Pretender()
    jobs = started(again)
    assert ended(jobs, batch).counts == {"succeeded": 9}
    assert sorted(solves(jobs).values()) == [1] * 9
    assert (runner.runs, again.runs) == (3, 7)  # the one that was stopped runs again


def test_a_turn_that_dies_half_way_has_done_nothing(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = started(Pretender(until_stopped))
    jobs._worker.drain()
    batch = begun(jobs, 3)
    feeder = BatchScheduler(jobs.context.store, jobs.context.settings)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    worker_elsewhere(jobs)
    monkeypatch.setattr(repository, "finish_ended", dies)
    with pytest.raises(KeyboardInterrupt):
        feeder.turn()
    monkeypatch.undo()
    assert not solves(jobs)
    assert repository.find(jobs.context.store, batch.id).counts == {"queued": 3}
    jobs = started(Pretender())
    assert ended(jobs, batch).counts == {"succeeded": 3}


def test_two_who_feed_at_once_feed_no_item_twice(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder_module, "BUSY_POLL_S", 0.0)
    jobs = started(Pretender(), workers=2)
    batch = begun(jobs, 24)
    others = [BatchScheduler(jobs.context.store, jobs.context.settings) for _ in range(2)]
    ends = time.monotonic() + PATIENCE_S

    def feed(feeder: BatchScheduler) -> None:
        while not repository.find(jobs.context.store, batch.id).finished and time.monotonic() < ends:
            feeder.nudge()
            feeder.turn()

    threads = [threading.Thread(target=feed, args=(feeder,)) for feeder in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended(jobs, batch).counts == {"succeeded": 24}
    assert sorted(solves(jobs).values()) == [1] * 24


def test_batches_are_looked_at_again_once_woken_or_once_an_item_has_ended_here(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause, seconds in (("IDLE_POLL_S", 1e9), ("BUSY_POLL_S", 1e9), ("WOKEN_POLL_S", 0.0)):
        monkeypatch.setattr(feeder_module, pause, seconds)
    monkeypatch.setattr(Worker, "_feed", lambda worker: None)  # its first turn may still run when it drains
    jobs = started(Pretender(until_stopped))
    jobs._worker.drain()
    worker_elsewhere(jobs)
    store = jobs.context.store
    feeder = BatchScheduler(store, jobs.context.settings)
    assert not feeder.turn()  # there is no batch
    batch = begun(jobs, 1)
    assert not feeder.turn()
    feeder.wake()
    assert feeder.turn()
    assert repository.find(store, batch.id).counts == {"running": 1}
    jobs.cancel(str(repository.items_of(store, batch.id, -1, 1)[0]["operation_id"]))
    feeder.turn()
    assert repository.find(store, batch.id).counts == {"running": 1}
    assert feeder.nudge()
    feeder.turn()
    assert repository.find(store, batch.id).counts == {"cancelled": 1}


def worker_elsewhere(jobs: Here) -> None:
    """Register a worker with one slot on another host."""
    at = now()
    row = {"id": "elsewhere", "host": "h", "pid": 1, "born": "", "slots": 1, "beats": 0}
    with jobs.context.store.writing() as connection:
        connection.execute(sa.insert(workers), row | {"started_at": at, "beat_at": at})


def test_what_is_cancelled_ends_now_or_keeps_its_best_and_may_be_tried_again(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    port, batch = JobsWithBatches(jobs, jobs.context.store), begun(jobs, 6)
    runner.started.wait(PATIENCE_S)
    port.cancel(batch.operation_id)
    batch = ended(jobs, batch)
    assert (batch.state, batch.counts) == ("cancelled", {"cancelled": 6})
    kept = [item["plan_id"] for item in repository.items_of(jobs.context.store, batch.id, -1, 6)]
    assert kept[0] is not None and kept[-1] is None
    runner.act = lambda stop, tell: "plan"
    again = repository.retry(jobs.context.store, batch.id)
    assert (again.state, again.runs, again.counts) == ("queued", 2, {"queued": 6})
    assert ended(jobs, batch).counts == {"succeeded": 6}
    assert repository.retry(jobs.context.store, batch.id).runs == 2
    assert check_integrity(jobs.context.store).faults == []


def test_a_batch_that_is_being_cancelled_cannot_be_tried_again_yet(started: Any) -> None:
    goes_on = threading.Event()
    jobs = started(Pretender(lambda stop, tell: str(goes_on.wait(PATIENCE_S))))
    batch = begun(jobs, 2)
    until(jobs, lambda: bool(jobs.context.runner.runs))
    repository.cancel(jobs.context.store, batch.id)
    with pytest.raises(Conflict, match="being cancelled"):
        repository.retry(jobs.context.store, batch.id)
    goes_on.set()
    assert ended(jobs, batch).state == "cancelled"


@pytest.mark.parametrize("asked_first", [True, False])
def test_what_somebody_asked_for_by_itself_goes_on_when_a_batch_is_cancelled(started: Any, asked_first: bool) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    question = SolveRequest(request_key(GRAPH_ID, {"seed": 0}), GRAPH_ID, {"seed": 0})
    if asked_first:
        jobs.submit(question)
    batch = begun(jobs, 2)
    until(jobs, lambda: repository.find(jobs.context.store, batch.id).counts == {"running": 2})
    mine = jobs.submit(question).id
    of_items = [item["operation_id"] for item in repository.items_of(jobs.context.store, batch.id, -1, 2)]
    assert of_items[0] == mine
    repository.cancel(jobs.context.store, batch.id)
    batch = ended(jobs, batch)
    assert (batch.state, batch.counts) == ("cancelled", {"cancelled": 2})
    assert jobs.status(of_items[1]).state == "cancelled"
    assert not jobs.status(mine).cancel_requested
    jobs.cancel(mine)
    assert finished(jobs, mine).answer is not None
    assert check_integrity(jobs.context.store).faults == []


def test_an_item_that_fails_says_why_and_the_others_go_on(started: Any) -> None:
    runner = Pretender()

    def act(stop: threading.Event, tell: Callable[..., None]) -> str:
        if runner.runs == 2:
            raise SolveFailed("the child ended", code="killed")
        return "plan"

    runner.act = act
    jobs = started(runner)
    batch = ended(jobs, begun(jobs, 4))
    assert (batch.state, batch.counts) == ("succeeded", {"succeeded": 3, "failed": 1})
    (failed,) = repository.items_of(jobs.context.store, batch.id, -1, 4, "failed")
    assert (failed["error"]["code"], failed["plan_id"]) == ("killed", None)
    assert ended(jobs, repository.retry(jobs.context.store, batch.id)).counts == {"succeeded": 4}


def test_two_batches_that_ask_the_same_share_a_solve_and_neither_ends_it_for_the_other(started: Any) -> None:
    runner = Pretender()
    runner.act = stopping_once(runner)
    jobs = started(runner)
    first, second = begun(jobs, 1), begun(jobs, 1)
    until(jobs, lambda: repository.find(jobs.context.store, second.id).counts == {"running": 1})
    (shared,) = solves(jobs)
    repository.cancel(jobs.context.store, first.id)
    assert ended(jobs, first).state == "cancelled"
    (item,) = repository.items_of(jobs.context.store, second.id, -1, 1)
    assert (item["state"], jobs.status(item["operation_id"]).cancel_requested) == ("running", False)
    repository.cancel(jobs.context.store, second.id)
    assert jobs.status(item["operation_id"]).cancel_requested
    assert ended(jobs, second).state == "cancelled"
    assert solves(jobs) == {shared: 1}


def test_batches_take_turns(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    begun(jobs, 20)
    other = BatchOwner("b", "key", at_once=1)
    runner.started.wait(PATIENCE_S)
    second = repository.create(jobs.context.store, asked_of(8, budgets=["50%"]), other, None, "body", 100)
    runner.act = lambda stop, tell: time.sleep(0.01) or f"plan {runner.runs}"
    (item,) = repository.items_of(
        jobs.context.store, repository.page(jobs.context.store, None, None, 9, "running")[0].id, -1, 1
    )
    jobs.cancel(item["operation_id"])
    most = 0
    while not (found := repository.find(jobs.context.store, second.id)).finished:
        most = max(most, found.counts.get("running", 0))
        time.sleep(0.005)
    assert most == 1  # as many as its key may have
    first = repository.page(jobs.context.store, None, second.id, 9, None)[0]
    begins = [item["started_at"] for item in repository.items_of(jobs.context.store, second.id, -1, 1)]
    assert begins[0] <= str(ended(jobs, first).ended_at)


def test_an_operation_that_is_gone_is_asked_again(started: Any) -> None:
    runner = Pretender(until_stopped)
    jobs = started(runner)
    batch = begun(jobs, 1)
    runner.started.wait(PATIENCE_S)
    jobs._worker.drain()
    with jobs.context.store.writing() as connection:
        connection.execute(sa.update(items).values(operation_id="op that somebody has collected"))
    jobs = started(Pretender())
    assert ended(jobs, batch).counts == {"succeeded": 1}


def test_what_is_known_is_not_solved(started: Any) -> None:
    runner = Pretender()
    jobs = started(runner)
    ended(jobs, begun(jobs, 3))
    batch = ended(jobs, begun(jobs, 5))
    cached = [item["cached"] for item in repository.items_of(jobs.context.store, batch.id, -1, 9)]
    assert (cached, runner.runs) == ([True] * 3 + [False] * 2, 5)


def test_a_batch_is_an_operation_with_events(started: Any) -> None:
    import asyncio

    jobs = started(Pretender())
    port, batch = JobsWithBatches(jobs, jobs.context.store), begun(jobs, 3)

    async def follow() -> list[Any]:
        return [event async for event in port.stream(batch.operation_id, 0) if event is not None]

    seen = asyncio.run(follow())
    assert [event.id for event in seen] == sorted({event.id for event in seen})
    last = seen[-1]
    assert (last.name, last.data["state"], last.data["kind"]) == ("state", "succeeded", "batch")
    assert last.data["result"] == f"/v1/batches/{batch.id}"
    assert (last.data["progress"]["done"], last.data["progress"]["total"]) == (3, 3)
    listed = port.list(None, 2, None)
    every = [*listed.operations, *port.list(listed.after, 9, None).operations]
    assert [one.id for one in every] == sorted((one.id for one in every), reverse=True)
    assert [one.kind for one in every].count("batch") == 1
    assert len(every) == 4


def test_old_batches_go_with_their_items_and_hold_their_plans_until_then(started: Any) -> None:
    from datetime import timedelta

    jobs = started(Pretender())
    store = jobs.context.store
    old = ended(jobs, begun(jobs, 2))
    jobs._worker.drain()
    open_one = begun(jobs, 1)
    aged(store, timedelta(days=10))
    kept = collect(store, 9, 9)
    assert (kept.batches, kept.plans) == (0, 0)  # batches are as young as ever; their plans stay with them
    with store.writing() as connection:
        connection.execute(sa.update(batches).where(batches.c.id == old.id).values(ended_at="2020-01-01T00:00:00.000Z"))
    taken = collect(store, 9, 9)
    assert (taken.batches, taken.plans) == (1, 1)  # the pretender makes one and the same plan
    found = check_integrity(store)
    assert (found.faults, found.batches, found.items) == ([], 1, 1)
    assert repository.find(store, open_one.id).state == "queued"


def test_the_walk_finds_what_is_wrong_with_a_batch(started: Any) -> None:
    jobs = started(Pretender())
    batch, store = ended(jobs, begun(jobs, 4)), jobs.context.store
    with store.writing() as connection:
        connection.execute(sa.delete(items).where(items.c.number == 1))
        connection.execute(sa.update(items).where(items.c.number == 2).values(state="queued"))
        connection.execute(sa.update(items).where(items.c.number == 3).values(plan_id=None))
    said = check_integrity(store).faults
    for part in ("item 1 is missing", "item 2: queued, but ended_at is", "item 3: succeeded, but has no plan"):
        assert any(part in fault for fault in said), said
    assert all(batch.id in fault for fault in said)


def test_items_of_several_graphs_have_numbers_in_the_order_of_the_product(started: Any) -> None:
    jobs = started(Pretender())
    store = jobs.context.store
    other = save_graph(store, graph_read(b"{ }", "other"))["id"]
    save_plan(store, solved(), other)
    asked = parse_batch({"graph_ids": [GRAPH_ID, other], "budgets": [0.5, "90%"], "seeds": [1, 2]}, 8)
    batch = ended(jobs, repository.create(store, asked, NOBODY, None, "body", 100_000))
    found = repository.items_of(store, batch.id, -1, 9)
    assert [(item["model"], item["budget"], item["seed"]) for item in found] == [
        (name, budget, seed) for name in ("net", "other") for budget in (0.5, "90%") for seed in (1, 2)
    ]
    assert [item["number"] for item in repository.items_of(store, batch.id, 2, 3)] == [3, 4, 5]
    delete_graph(store, GRAPH_ID, None)
    left = repository.items_of(store, batch.id, -1, 9)
    assert ([item["number"] for item in left], repository.find(store, batch.id).total) == ([4, 5, 6, 7], 4)
    assert check_integrity(store).faults == []
