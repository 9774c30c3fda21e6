"""Readiness is probed once a second, however often it is asked for, and tells strangers no paths."""

from __future__ import annotations

import asyncio

import pytest

from app.api.service.readiness import PROBE_S, STALE_S, Readiness
from app.atomic_files import CannotWrite
from app.errors import Unavailable


class Probed:
    """A store that is probed, and its time."""

    def __init__(self) -> None:
        self.at, self.probes, self.error = 0.0, 0, None  # type: float, int, Exception | None
        self.readiness = Readiness(self.probe, lambda: self.at)

    def probe(self) -> None:
        self.probes += 1
        if self.error is not None:
            raise self.error


def test_a_thousand_questions_are_one_probe_a_second() -> None:
    async def scenario(store: Probed) -> None:
        await asyncio.gather(*(store.readiness.require() for _ in range(1_000)))
        assert store.probes == 1
        store.at += PROBE_S + 0.1
        await asyncio.gather(*(store.readiness.require() for _ in range(1_000)))
        assert store.probes == 2

    asyncio.run(scenario(Probed()))


def test_a_failure_names_its_code_and_no_path() -> None:
    async def scenario(store: Probed) -> None:
        store.error = CannotWrite("cannot write /srv/secret: disk full")
        with pytest.raises(Unavailable) as caught:
            await store.readiness.require()
        assert caught.value.code == "cannot_write" and "/srv" not in str(caught.value)
        store.error, store.at = None, PROBE_S + 0.1
        await store.readiness.require()

    asyncio.run(scenario(Probed()))


def test_a_probe_that_hangs_is_noticed_by_those_who_do_not_wait_for_it() -> None:
    async def scenario(store: Probed) -> None:
        await store.readiness.require()
        async with store.readiness._probing:  # as a probe that takes long
            store.at = STALE_S
            await store.readiness.require()
            store.at = STALE_S + 1
            with pytest.raises(Unavailable, match="has not answered"):
                await store.readiness.require()

    asyncio.run(scenario(Probed()))
