"""Readiness of the store: the result of the last probe, which callers share."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

import anyio.to_thread

from app.atomic_files import CannotWrite
from app.errors import AppError, Unavailable, error_row

log = logging.getLogger(__name__)

PROBE_S = 1.0  # between probes; each writes to the disk and takes the write lock of the database
STALE_S = 10.0  # age of the last result at which a probe counts as hanging


class Readiness:
    """Probes on request, one at a time. For one event loop."""

    def __init__(self, probe: Callable[[], None], clock: Callable[[], float] = time.monotonic):
        self._probe, self._clock = probe, clock
        self._probing = asyncio.Lock()
        self._at, self._error = -math.inf, None  # type: tuple[float, Unavailable | None]

    async def require(self) -> None:
        """Raises Unavailable unless the last probe succeeded; waits for the first probe only."""
        if self._clock() - self._at > PROBE_S and (self._at == -math.inf or not self._probing.locked()):
            async with self._probing:
                if self._clock() - self._at > PROBE_S:
                    self._error = await anyio.to_thread.run_sync(self._failure)
                    self._at = self._clock()
        if self._clock() - self._at > STALE_S:
            raise Unavailable(f"the store has not answered for {STALE_S:g} s", headers={"Retry-After": "5"})
        if self._error is not None:
            raise self._error

    def _failure(self) -> Unavailable | None:
        """The failure of a probe without its message, which names paths and hosts; it is logged."""
        try:
            self._probe()
        except (AppError, CannotWrite) as error:
            log.warning("event=not_ready error=%r", str(error))
            row = error_row(error)
            code = getattr(error, "code", "") or row.code
            return Unavailable(
                f"{row.title}; the log of the service has the cause", code=code, headers={"Retry-After": "5"}
            )
        return None
