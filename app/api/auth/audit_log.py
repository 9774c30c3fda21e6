"""Audit lines of requests: those that wait are stored together, so that many requests wait for few transactions."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio
import anyio.to_thread

from app.api.auth.key_store import AuditEntry, KeyStore
from app.atomic_files import CannotWrite
from app.errors import AppError

log = logging.getLogger(__name__)


class AuditLog:
    """Stores lines, one transaction at a time. For one event loop."""

    def __init__(self, key_store: KeyStore):
        self._key_store = key_store
        self._waiting = list[AuditEntry]()
        self._turn = anyio.Lock()

    async def write(self, entry: AuditEntry) -> None:
        """Return once the line is stored. Lines that cannot be stored go to the log of the service."""
        self._waiting.append(entry)
        async with self._turn:
            entries, self._waiting = self._waiting, []
            if entries:  # not stored with those of another request
                await anyio.to_thread.run_sync(self._store, entries)

    def _store(self, entries: Sequence[AuditEntry]) -> None:
        try:
            self._key_store.record(*entries)
        except (AppError, CannotWrite):
            for entry in entries:
                log.exception("event=not_audited method=%s path=%s status=%s", entry.method, entry.path, entry.status)
