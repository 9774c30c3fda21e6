"""Blobs by the hash of their bytes, zstd inside, in a folder or an object store.

PREFIX/ab/abcdef....zst    its name is the SHA-256 of the bytes inside
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import zstandard
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from app.atomic_files import CannotWrite, remedy
from app.errors import BadUsage, NotFound, Unavailable
from app.telemetry import metrics

KEY = re.compile(r"[0-9a-f]{64}")
ZSTD_LEVEL = 3  # zstd; a graph document shrinks about tenfold
GRACE = timedelta(hours=1)  # from a blob to the row that names it; a younger blob is never collected
OS_ERROR = re.compile(r"\(os error (\d+)\)")
SCHEMES = ("file", "s3", "gs", "az")
# An operator who names an http:// endpoint, in a network of their own, means it.
CLIENT_TIMEOUTS: Any = {"connect_timeout": "5s", "timeout": "30s", "allow_http": True}
RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}
UNFINISHED = re.compile(r"#\d+$")  # a file that obstore was writing when it was killed; it lists none


class Blobs:
    """What has a name has the bytes of that name, whole. Safe for many threads and processes."""

    def __init__(self, url: str | None, data: Path):
        self.folder = _folder_of(url, data)
        self._synced: set[Path] = set()
        self.place = str(self.folder or url)
        try:
            self._store: Any = _store_at(url, self.folder)
        except OSError as error:
            said = f"cannot use {self.folder} for blobs: {os.strerror(_errno(error) or 0)}"
            raise CannotWrite(f"{said}; name another with --data or REMAT_BLOBS_URL") from error
        except (BaseError, ValueError) as error:
            said = _first_line(error)
            raise BadUsage(f"REMAT_BLOBS_URL: {said}; write it as s3://BUCKET/PREFIX") from error

    def put(self, data: bytes) -> str:
        """Key of the blob. It can be read by everybody once this returns. Raises CannotWrite, Unavailable."""
        key = blob_key(data)
        if not self._is_fresh(key, data):
            self._write(key, zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(data))
        return key

    def get(self, key: str) -> bytes:
        """Bytes of a blob. Raises NotFound, Unavailable."""
        if not KEY.fullmatch(key):
            raise NotFound(f"there is no blob {key[:80]!r}")
        try:
            packed = self._read(key)
        except FileNotFoundError:
            raise NotFound(f"there is no blob {key}") from None
        except (BaseError, OSError) as error:
            raise self._in_words("read", key, error) from error
        try:
            return zstandard.ZstdDecompressor().decompress(packed)
        except zstandard.ZstdError as error:
            said = f"blob {key} is damaged: {error}; put a backup in its place"
            damaged = Unavailable(said, code="damaged")
            metrics.count_store_error("blobs", damaged)
            raise damaged from error

    def _read(self, key: str) -> Any:
        """What is stored. A file is read as it is: obstore would have another thread do it, which takes longer."""
        if self.folder is not None:
            return (self.folder / _path(key)).read_bytes()
        return self._store.get(_path(key)).bytes()

    def has(self, key: str) -> bool:
        return self._changed_at(key) is not None

    def age(self, key: str) -> timedelta | None:
        """How long ago the blob was written; None when it is not there."""
        at = self._changed_at(key)
        return None if at is None else datetime.now(UTC) - at

    def scan(self, older_than: timedelta = timedelta.min) -> Iterator[list[tuple[str, int]]]:
        """(key, bytes as stored) of every blob of that age, some at a time; a file that is none by its path."""
        now = datetime.now(UTC)
        try:
            for batch in self._store.list(chunk_size=500):
                old = [meta for meta in batch if now - meta["last_modified"] >= older_than]
                yield [(_key(meta["path"]), meta["size"]) for meta in old]
        except (BaseError, OSError) as error:
            raise self._in_words("list", "", error) from error

    def remove(self, key: str) -> None:
        try:
            self._store.delete(_path(key))
        except FileNotFoundError:
            pass
        except (BaseError, OSError) as error:
            raise self._in_words("remove", key, error) from error

    def partial_files(self, older_than: timedelta = GRACE) -> list[Path]:
        """Files that a killed process left half written; nobody reads them."""
        until = (datetime.now(UTC) - older_than).timestamp()
        found = [] if self.folder is None else self.folder.glob("*/*#*")
        return [path for path in found if UNFINISHED.search(path.name) and _written(path) <= until]

    def _write(self, key: str, packed: bytes) -> None:
        # Whoever else writes it writes the same bytes, and each whole: the last one may win.
        try:
            self._store.put(_path(key), packed, use_multipart=False)
            if self.folder is not None:
                self._sync(self.folder / _path(key))
        except (BaseError, OSError) as error:
            raise self._in_words("write", key, error) from error

    def _sync(self, path: Path) -> None:
        """A row that names the blob must not outlive it when the power goes."""
        try:
            _fsync(path)
            _fsync(path.parent)
            if path.parent not in self._synced:  # its name in the folder above
                _fsync(path.parent.parent)
                self._synced.add(path.parent)
        except OSError:
            path.unlink(missing_ok=True)  # what may be lost must not be taken for kept the next time
            raise

    def _is_fresh(self, key: str, data: bytes) -> bool:
        """Whether the blob is whole, and so young that no collection takes it before a row names it."""
        age = self.age(key)
        try:
            return age is not None and age < GRACE / 2 and self.get(key) == data
        except (NotFound, Unavailable):
            return False

    def _changed_at(self, key: str) -> datetime | None:
        try:
            if self.folder is not None:
                return datetime.fromtimestamp(os.stat(f"{self.place}/{_path(key)}").st_mtime, UTC)
            changed: datetime = self._store.head(_path(key))["last_modified"]
            return changed
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._in_words("look at", key, error) from error

    def _in_words(self, what: str, key: str, error: Exception) -> Exception:
        said = self._said(what, key, error)
        metrics.count_store_error("blobs", said)
        return said

    def _said(self, what: str, key: str, error: Exception) -> Exception:
        code = _errno(error)
        if self.folder is not None and code is not None:
            said = f"cannot {what} {self.folder / _path(key) if key else self.folder}: {os.strerror(code)}"
            return CannotWrite(f"{said}; {remedy(code)}") if what == "write" else Unavailable(said)
        said = f"{self.place} does not answer: {_first_line(error)}"
        return Unavailable(said, headers={"Retry-After": "5"})


def blob_key(data: bytes) -> str:
    """Name of the blob that holds these bytes."""
    return hashlib.sha256(data).hexdigest()


def _folder_of(url: str | None, data: Path) -> Path | None:
    """Where blobs are files; None for an object store."""
    if url is None:
        return (data / "blobs").resolve()
    return Path(unquote(urlsplit(url).path)).resolve() if url.startswith("file:") else None


def _store_at(url: str | None, folder: Path | None) -> Any:
    if folder is not None:
        return LocalStore(folder, mkdir=True)
    assert url is not None
    scheme = url.partition(":")[0]
    if scheme not in SCHEMES:
        raise BadUsage(f"REMAT_BLOBS_URL begins with {scheme[:20]!r}; write one of {', '.join(SCHEMES)}")
    return from_url(url, client_options=CLIENT_TIMEOUTS, retry_config=RETRIES)


def _path(key: str) -> str:
    return f"{key[:2]}/{key}.zst"


def _key(path: str) -> str:
    """The key in a path; the path itself where it is none."""
    key = path.rpartition("/")[2].removesuffix(".zst")
    return key if KEY.fullmatch(key) and path == _path(key) else path


def _written(path: Path) -> float:
    """When a file was last written to; never, once it has its final name."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _fsync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]


def _errno(error: Exception) -> int | None:
    """The system's error number, which obstore has in its words only."""
    found = OS_ERROR.search(str(error))
    return int(found[1]) if found else getattr(error, "errno", None)
