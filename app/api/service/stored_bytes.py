"""Bytes that a store occupies."""

from __future__ import annotations

import logging
import threading

import sqlalchemy as sa

from app.errors import AppError
from app.store.store import Store

log = logging.getLogger(__name__)

COUNT_S = 600.0  # between counts of the blobs, of which a large store has millions


class StoredBytes:
    """Bytes of database and blobs. A thread counts the blobs every COUNT_S, until `closed` is set."""

    def __init__(self, store: Store, closed: threading.Event):
        self._store, self._closed = store, closed
        self._blobs: int | None = None
        threading.Thread(target=self._count, name="stored-bytes", daemon=True).start()

    def read(self) -> dict[str, int]:
        """Bytes of `database` now, and of `blobs` when last counted. Raises CannotWrite, Unavailable."""
        counted = {} if self._blobs is None else {"blobs": self._blobs}
        return {"database": database_bytes(self._store), **counted}

    def _count(self) -> None:
        while True:
            try:
                self._blobs = sum(size for page in self._store.blobs.scan() for _, size in page)
            except AppError as error:
                log.warning("event=blobs_not_counted error=%r", str(error))
            if self._closed.wait(COUNT_S):
                return


def database_bytes(store: Store) -> int:
    """Bytes of the database without logs; of SQLite, the pages of its file. Raises CannotWrite, Unavailable."""
    of_sqlite = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    query = of_sqlite if store.is_sqlite else "SELECT pg_database_size(current_database())"
    with store.reading() as connection:
        return int(connection.execute(sa.text(query)).scalar_one())
