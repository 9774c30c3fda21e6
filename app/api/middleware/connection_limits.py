"""Connection timeouts of the HTTP server: slow request heads, unread bodies and slow readers."""

from __future__ import annotations

import asyncio
import logging
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.api.service.process_admission import Admission
from app.errors import AppError
from app.settings import Settings
from app.telemetry import metrics

log = logging.getLogger(__name__)

STALL_CHECK_S = 10.0  # between checks of the progress of a blocked response


class LimitedH11Protocol(H11Protocol):
    """uvicorn's h11 protocol with timeouts for slow clients.

    uvicorn has no timeout for an incomplete request head or for a client that does not read its response.
    """

    settings: ClassVar[Settings]
    admission: ClassVar[Admission]
    unasked: ClassVar[dict[LimitedH11Protocol, None]]  # connections without a request, those that wait longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._awaited = ""
        self._timeout: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes of a response that are counted by `admission`
        super().connection_made(transport)
        if len(self.connections) > self.settings.connections:  # a client may hold connections, but not all of them
            next(iter(self.unasked), self)._abort("REMAT_CONNECTIONS")
        self._await_client()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_client()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._release()
        self.unasked.pop(self, None)
        for timer in (self._timeout, self._check_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        unsent = self.transport.get_write_buffer_size()
        try:
            self.admission.take(unsent, 0)
        except AppError:  # counted by `take`
            self.transport.abort()
            return
        self._unsent = unsent
        self._schedule_check()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._release()
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _release(self) -> None:
        self.admission.give(self._unsent)
        self._unsent = 0

    def _await_client(self) -> None:
        """Run one timer for the data due from the client: a head, or the rest of a body after its response."""
        client_state, due = self.conn.their_state, ""
        if client_state is h11.IDLE:
            due = "head"
        elif client_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            due = "rest"
        if due == self._awaited:
            return
        self._awaited = due
        if self._timeout is not None:
            self._timeout.cancel()
        self.unasked.pop(self, None)
        if due == "head" and not self.transport.is_closing():
            self.unasked[self] = None
        if due and not self.transport.is_closing():
            self._timeout = self.loop.call_later(self.settings.head_seconds, self._abort, "REMAT_HEAD_SECONDS")

    def _schedule_check(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._check_timer = self.loop.call_later(STALL_CHECK_S, self._check_progress, left)

    def _check_progress(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < self.settings.slowest_bytes * STALL_CHECK_S:
            self._abort("REMAT_SLOWEST_BYTES")
        else:
            self._schedule_check()

    def _abort(self, setting: str) -> None:
        metrics.count_refused(setting)
        log.debug("event=aborted limit=%s", setting)
        self.unasked.pop(self, None)
        self.transport.abort()


def limited_protocol(admission: Admission) -> type[LimitedH11Protocol]:
    """The protocol class with the settings and counters of a service."""
    return type(
        "Patient", (LimitedH11Protocol,), {"settings": admission.settings, "admission": admission, "unasked": {}}
    )
