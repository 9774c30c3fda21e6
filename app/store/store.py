"""The store of a service: rows in a database, and blobs. A blob is written before the row that references it.

bytes ──▶ blob, complete and synced ──▶ row, in one transaction ──▶ rewrite the blob if collected meanwhile
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import re
import secrets
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from app.atomic_files import CannotWrite, remedy, write_atomic
from app.errors import NotFound, Unavailable
from app.settings import Settings
from app.store.blobs import Blobs
from app.store.database import BUSY_SECONDS, RETRY, SQLITE_WRITES, engine_of, translate_errors
from app.store.schema import is_current_schema, migrate, require_current_schema

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Store:
    """Thread-safe and multi-process; with SQLite, one process serves at a time (see `own`)."""

    def __init__(self, settings: Settings):
        data = settings.data
        url = None if settings.database_url is None else settings.database_url.get_secret_value()
        self._uses_folder = url is None or settings.blobs_url is None
        if self._uses_folder:
            _create_folder(data)
        if url is None and (data / "records").is_dir():
            message = f"{data} was written by an older version of remat, whose records this version cannot read"
            raise Unavailable(f"{message}; choose another folder with --data", code="older_store")
        self.data = data
        self.blobs = Blobs(settings.blobs_url, data)
        self.engine = engine_of(url, data)
        self._writes = self.engine.execution_options(**SQLITE_WRITES)
        self._write_lock = threading.Lock()  # SQLite has one writer, and lets the others sleep for milliseconds
        self._owning = contextlib.ExitStack()

    @classmethod
    def open_for_serving(cls, settings: Settings) -> Self:
        """The store, locked for serving, with an up-to-date schema. Raises Unavailable."""
        store = cls(settings)
        try:
            store.own()
            store.prepare()
        except BaseException:
            store.close()
            raise
        return store

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def prepare(self) -> None:
        """Migrate the schema of SQLite; on PostgreSQL, require that `remat migrate` was run. Raises Unavailable."""
        if self.is_sqlite:
            migrate(self.engine)  # in one transaction, under the lock of SQLite
        else:
            require_current_schema(self.engine)

    def prepare_beside_service(self) -> None:
        """As `prepare`; SQLite is migrated only while no process serves the folder. Raises Unavailable."""
        if self.is_sqlite and not is_current_schema(self.engine):
            self.own()
        self.prepare()

    def own(self) -> None:
        """Lock the data folder against other serving processes. Raises Unavailable."""
        if not self.is_sqlite:
            return
        lock = self._owning.enter_context((self.data / "lock").open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._owning.close()
            raise Unavailable(f"{self.data} is in use by another process; stop it or use another folder") from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A read transaction. Raises CannotWrite, Unavailable."""
        with translate_errors(self.engine), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *blobs: bytes) -> Iterator[sa.Connection]:
        """A transaction whose rows may reference `blobs`; atomic. Raises CannotWrite, Unavailable."""
        keys = [self.blobs.put(data) for data in blobs]
        with self._one_writer(), translate_errors(self.engine), self._writes.begin() as connection:
            yield connection
        for key, data in zip(keys, blobs, strict=True):
            if not self.blobs.has(key):  # collected meanwhile, as no committed row referenced it
                self.blobs.put(data)

    @contextlib.contextmanager
    def _one_writer(self) -> Iterator[None]:
        """With SQLite, one thread of this process at a time. Raises Unavailable."""
        if not self.is_sqlite:
            yield
            return
        if not self._write_lock.acquire(timeout=BUSY_SECONDS):
            raise Unavailable(f"the database was locked by another writer for {BUSY_SECONDS:g} s; retry", headers=RETRY)
        try:
            yield
        finally:
            self._write_lock.release()

    def row(self, table: sa.Table, id: str, *more: sa.ColumnElement[Any]) -> dict[str, Any]:
        """The row of that primary key, with the columns `more`. Raises NotFound."""
        if ID_PATTERN.fullmatch(id):
            with self.reading() as connection:
                row = connection.execute(_of_id(table, *more), {"of_id": id}).mappings().first()
            if row is not None:
                return dict(row)
        raise NotFound(f"no {table.name[:-1]} {id[:80]!r}")

    def check(self) -> None:
        """Check that database and blobs are writable. Raises CannotWrite, Unavailable."""
        if self._uses_folder:
            probe = self.data / f".probe.{secrets.token_hex(8)}"
            write_atomic(probe, b"probe")
            probe.unlink(missing_ok=True)
        self.blobs.has("0" * 64)  # checks that the object store responds
        with self.writing() as connection:
            connection.execute(sa.text("SELECT 1"))

    def close(self) -> None:
        self._owning.close()
        self.engine.dispose()


@functools.cache
def _of_id(table: sa.Table, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    (key,) = table.primary_key.columns
    return sa.select(table, *more).where(key == sa.bindparam("of_id"))


def _create_folder(folder: Path) -> None:
    """Create the folder if it does not exist, and check that it is writable. Raises CannotWrite."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # models are readable by their owner only
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"cannot use {folder} as data folder: {error.strerror or error}"
        raise CannotWrite(f"{message}; {remedy(error.errno)}, with --data") from error
