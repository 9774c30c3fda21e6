"""Streams of one batch and waits for it share the queries of its status."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from app.errors import NotFound
from app.jobs.batches import operations
from app.jobs.batches.operations import BatchOperation, JobsWithBatches

FOLLOWERS = 64


class OneBatch(JobsWithBatches):
    """A batch that changes with every query and is finished after some."""

    def __init__(self, last: int) -> None:
        super().__init__(cast("Any", None), cast("Any", None))
        self.queries, self.last = 0, last

    def _batch(self, id: str) -> Any:
        return id

    def status(self, id: str) -> BatchOperation:
        self.queries += 1
        if id == "gone":
            raise NotFound("gone")
        state = "succeeded" if self.queries >= self.last else "running"
        operation = BatchOperation(id, "", "", {}, "2026-01-01T00:00:00Z", kind="batch", state=state)
        operation.last_event = self.queries
        return operation


async def followed(jobs: JobsWithBatches, id: str) -> list[int]:
    return [event.id async for event in jobs.stream(id, 0) if event is not None]


def test_many_streams_and_waits_need_the_queries_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "POLL_S", 0.1)

    async def run() -> None:
        jobs = OneBatch(3)
        streams = [followed(jobs, "batch") for _ in range(FOLLOWERS)]
        waits = [jobs.wait("batch", 30) for _ in range(FOLLOWERS)]
        events, ends = await asyncio.gather(asyncio.gather(*streams), asyncio.gather(*waits))
        assert jobs.queries < 3 * 5  # 3 alone
        assert all(ids == sorted(set(ids)) and ids[-1] >= 3 for ids in events)
        assert {operation.state for operation in ends} == {"succeeded"}
        assert not jobs._queries

    asyncio.run(run())


def test_an_error_reaches_everyone_and_is_asked_again() -> None:
    async def run() -> None:
        jobs = OneBatch(1)
        found = await asyncio.gather(*(jobs.wait("gone", 1) for _ in range(8)), return_exceptions=True)
        assert [type(each) for each in found] == [NotFound] * 8
        before = jobs.queries
        with pytest.raises(NotFound):
            await jobs.wait("gone", 1)
        assert jobs.queries == before + 1

    asyncio.run(run())


def test_a_wait_of_no_time_sees_what_was_written_before() -> None:
    async def run() -> None:
        jobs = OneBatch(9)
        await jobs.wait("batch", 0.001)
        before = jobs.queries
        await jobs.wait("batch", 0)
        assert jobs.queries == before + 1

    asyncio.run(run())
