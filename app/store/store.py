"""The store of a service: rows in a database, blobs beside it. A blob is there before the row that names it.

bytes ──▶ blob, whole and synced ──▶ row, in one transaction ──▶ is the blob still there?
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from app.atomic_files import CannotWrite, remedy, write_atomic
from app.errors import NotFound, Unavailable
from app.settings import Settings
from app.store.blobs import Blobs
from app.store.database import SQLITE_WRITES, engine_of, migrate, require_current_schema, translate_errors

ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Store:
    """Safe for many threads; and for many processes, of which one serves where rows are in SQLite (see `own`)."""

    def __init__(self, settings: Settings):
        data = settings.data
        url = None if settings.database_url is None else settings.database_url.get_secret_value()
        self._uses_folder = url is None or settings.blobs_url is None
        if self._uses_folder:
            _make(data)
        if url is None and (data / "records").is_dir():
            said = f"{data} was written by a remat that kept records as files, which this one does not read"
            raise Unavailable(f"{said}; name another folder with --data", code="older_store")
        self.data = data
        self.blobs = Blobs(settings.blobs_url, data)
        self.engine = engine_of(url, data)
        self._writes = self.engine.execution_options(**SQLITE_WRITES)
        self._owning = contextlib.ExitStack()

    @classmethod
    def open_for_serving(cls, settings: Settings) -> Self:
        """The store, to be served, whose tables are up to date. Raises Unavailable."""
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
        """Bring SQLite's tables up to date; on PostgreSQL demand that `remat migrate` has. Raises Unavailable."""
        if self.is_sqlite:
            migrate(self.engine)  # under SQLite's own lock, in one transaction
        else:
            require_current_schema(self.engine)

    def own(self) -> None:
        """Keep every other process that wants to serve the same folder out. Raises Unavailable."""
        if not self.is_sqlite:
            return
        lock = self._owning.enter_context((self.data / "lock").open("a"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._owning.close()
            said = f"{self.data} is served by another process"
            raise Unavailable(f"{said}; stop it or name another folder") from error

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that only reads. Raises CannotWrite, Unavailable."""
        with translate_errors(self.engine), self.engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *blobs: bytes) -> Iterator[sa.Connection]:
        """A transaction whose rows may name `blobs`: all of it is kept, or nothing. Raises CannotWrite, Unavailable."""
        keys = [self.blobs.put(data) for data in blobs]
        with translate_errors(self.engine), self._writes.begin() as connection:
            yield connection
        for key, data in zip(keys, blobs, strict=True):
            if not self.blobs.has(key):  # collected in between, as nothing named it
                self.blobs.put(data)

    def row(self, table: sa.Table, id: str, *more: sa.ColumnElement[Any]) -> dict[str, Any]:
        """The row under that primary key, and `more` about it. Raises NotFound."""
        if ID_PATTERN.fullmatch(id):
            with self.reading() as connection:
                found = connection.execute(_of_id(table, *more), {"of_id": id}).mappings().first()
            if found is not None:
                return dict(found)
        raise NotFound(f"there is no {table.name[:-1]} {id[:80]!r}")

    def check(self) -> None:
        """Raises CannotWrite or Unavailable when nothing can be kept."""
        if self._uses_folder:
            probe = self.data / f".probe.{secrets.token_hex(8)}"
            write_atomic(probe, b"probe")
            probe.unlink(missing_ok=True)
        self.blobs.has("0" * 64)  # whether an object store answers
        with self.writing() as connection:
            connection.execute(sa.text("SELECT 1"))

    def close(self) -> None:
        self._owning.close()
        self.engine.dispose()


@functools.cache
def _of_id(table: sa.Table, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    (key,) = table.primary_key.columns
    return sa.select(table, *more).where(key == sa.bindparam("of_id"))


def _make(folder: Path) -> None:
    """Make the folder, if need be, and see that it can be written to. Raises CannotWrite."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        said = f"cannot use {folder} as data folder: {error.strerror or error}"
        raise CannotWrite(f"{said}; {remedy(error.errno)}, with --data") from error
