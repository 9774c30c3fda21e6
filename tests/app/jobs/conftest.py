"""Jobs that a test may start, and start again as a restart would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from app.settings import Settings
from tests.app.jobs.here import Here, Pretender
from tests.app.stores import opened


@pytest.fixture
def started(store_settings: dict[str, Any]) -> Iterator[Any]:
    """Starts jobs on one store; those of before are closed."""
    running: list[Here] = []

    def start(runner: Pretender, **settings: Any) -> Here:
        close()
        given = {"workers": 1, "drain_seconds": 0, "kill_seconds": 1} | settings
        running.append(Here(opened(**store_settings), runner, Settings(**store_settings, **given)))
        return running[0]

    def close() -> None:
        for jobs in running:
            jobs.close()
        running.clear()

    yield start
    close()
