"""Connections that come to an end: heads that never do, bodies nobody waits for any more, answers nobody takes."""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.api.service.admission import Admission
from app.errors import AppError
from app.settings import Settings
from app.telemetry import metrics

log = logging.getLogger(__name__)

STALL_CHECK_S = 10.0  # between two looks at an answer that is being taken


class LimitedH11Protocol(H11Protocol):
    """uvicorn's connection, which waits for a slow client as long as the settings say.

    uvicorn itself waits for ever for the rest of a head, and for a client to take its answer.
    """

    settings: ClassVar[Settings]
    admission: ClassVar[Admission]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._awaited = ""
        self._end: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes of an answer that are counted as held
        super().connection_made(transport)
        if len(self.connections) > self.settings.connections:
            self._give_up("REMAT_CONNECTIONS")
            return
        self._await_client()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_client()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._taken()
        for timer in (self._end, self._look):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        unsent = self.transport.get_write_buffer_size()
        try:
            self.admission.take(unsent, 0)
        except AppError:  # counted already
            self.transport.abort()
            return
        self._unsent = unsent
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()
        if self._look is not None:
            self._look.cancel()

    def _taken(self) -> None:
        self.admission.give(self._unsent)
        self._unsent = 0

    def _await_client(self) -> None:
        """Have one timer for what the client owes: a head, or the rest of a body that was answered already."""
        theirs, owed = self.conn.their_state, ""
        if theirs is h11.IDLE:
            owed = "head"
        elif theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            owed = "rest"
        if owed == self._awaited:
            return
        self._awaited = owed
        if self._end is not None:
            self._end.cancel()
        if owed and not self.transport.is_closing():
            self._end = self.loop.call_later(self.settings.head_seconds, self._give_up, "REMAT_HEAD_SECONDS")

    def _look_later(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(STALL_CHECK_S, self._look_whether_taken, left)

    def _look_whether_taken(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < self.settings.slowest_bytes * STALL_CHECK_S:
            self._give_up("REMAT_SLOWEST_BYTES")
        else:
            self._look_later()

    def _give_up(self, setting: str) -> None:
        metrics.count_refused(setting)
        log.debug("event=gave_up limit=%s", setting)
        self.transport.abort()


def limited_protocol(admission: Admission) -> type[LimitedH11Protocol]:
    """The connection with the settings and the counts of a service."""
    return type("Patient", (LimitedH11Protocol,), {"settings": admission.settings, "admission": admission})
