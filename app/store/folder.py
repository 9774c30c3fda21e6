"""A folder as store: zstd blobs by content hash, small JSON records, every write atomic.

DATA/lock                          held by the one process that serves the folder
DATA/blobs/ab/abcdef....zst        a blob; its name is the SHA-256 of the bytes inside
DATA/records/KIND/ab/abcdef....json
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from app.errors import NotFound, Unavailable
from app.files import CannotWrite, create_whole, remove_parts, write_whole
from app.store.port import Record

ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
LEVEL = 3  # zstd; a graph document shrinks about tenfold


class FolderStore:
    """Safe for many threads of one process; the lock keeps a second process out."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        try:
            for name in ("blobs", "records"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("a")
        except OSError as error:
            raise CannotWrite(
                f"cannot use {folder} as data folder: {error.strerror}; name another with --data"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise Unavailable(f"{folder} is served by another process; stop it or name another folder") from error
        remove_parts(self.folder)

    def put(self, data: bytes) -> str:
        key = hashlib.sha256(data).hexdigest()
        path = self._blob(key)
        if not path.exists():
            _make_folder(path.parent)
            create_whole(path, zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data))
        return key

    def get(self, key: str) -> bytes:
        try:
            return zstandard.ZstdDecompressor().decompress(self._blob(key).read_bytes())
        except FileNotFoundError:
            raise NotFound(f"there is no blob {key[:80]}") from None

    def create(self, kind: str, id: str, record: Record) -> bool:
        path = self._record(kind, id)
        _make_folder(path.parent)
        return create_whole(path, msgspec.json.encode(record))

    def replace(self, kind: str, id: str, record: Record) -> None:
        path = self._record(kind, id)
        _make_folder(path.parent)
        write_whole(path, msgspec.json.encode(record))

    def record(self, kind: str, id: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self._record(kind, id).read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            raise NotFound(f"there is no {kind[:-1]} {id[:80]!r}") from None

    def ids(self, kind: str) -> list[str]:
        return sorted(path.stem for path in (self.folder / "records" / kind).glob("*/*.json"))

    def check(self) -> None:
        probe = self.folder / f".probe.{os.getpid()}"
        write_whole(probe, b"")
        probe.unlink(missing_ok=True)

    def close(self) -> None:
        self._lock.close()

    def _blob(self, key: str) -> Path:
        return self.folder / "blobs" / _checked("blobs", key)[:2] / f"{key}.zst"

    def _record(self, kind: str, id: str) -> Path:
        # The last two characters spread: ids of operations begin with the time.
        return self.folder / "records" / kind / _checked(kind, id)[-2:] / f"{id}.json"


def _checked(kind: str, id: str) -> str:
    """The id, if it can be one at all: what a client sends never becomes another path."""
    if not ID.fullmatch(id):
        raise NotFound(f"there is no {kind[:-1]} {id[:80]!r}")
    return id


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot make {folder}: {error.strerror}") from error
