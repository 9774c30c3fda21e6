"""Content-addressed blobs, compressed with zstd, in a folder or an object store.

PREFIX/ab/abcdef....zst    the name is the SHA-256 of the uncompressed bytes
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
ZSTD_LEVEL = 3  # compresses a graph document about tenfold
GRACE = timedelta(hours=1)  # between a blob and the row that references it; younger blobs are never collected
OS_ERROR = re.compile(r"\(os error (\d+)\)")
SCHEMES = ("file", "s3", "gs", "az")
# http:// endpoints are allowed, for object stores in a private network.
CLIENT_TIMEOUTS: Any = {"connect_timeout": "5s", "timeout": "30s", "allow_http": True}
RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}
UNFINISHED = re.compile(r"#\d+$")  # partial file of a killed obstore write; `list` omits these


class Blobs:
    """Blob store: a blob is complete or absent. Thread-safe and multi-process."""

    def __init__(self, url: str | None, data: Path):
        self.folder = _folder_of(url, data)
        self._synced: set[Path] = set()
        self.place = str(self.folder or url)
        try:
            self._store: Any = _store_at(url, self.folder)
        except OSError as error:
            message = f"cannot use {self.folder} for blobs: {os.strerror(_errno(error) or 0)}"
            raise CannotWrite(f"{message}; choose another folder with --data or REMAT_BLOBS_URL") from error
        except (BaseError, ValueError) as error:
            raise BadUsage(f"REMAT_BLOBS_URL: {_first_line(error)}; write it as s3://BUCKET/PREFIX") from error

    def put(self, data: bytes) -> str:
        """Key of the stored blob, which is durable on return. Raises CannotWrite, Unavailable."""
        key = blob_key(data)
        if not self._is_fresh(key, data):
            self._write(key, zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(data))
        return key

    def get(self, key: str) -> bytes:
        """Bytes of a blob. Raises NotFound, Unavailable."""
        if not KEY.fullmatch(key):
            raise NotFound(f"no blob {key[:80]!r}")
        try:
            packed = self._read(key)
        except FileNotFoundError:
            raise NotFound(f"no blob {key}") from None
        except (BaseError, OSError) as error:
            raise self._translated("read", key, error) from error
        try:
            return zstandard.ZstdDecompressor().decompress(packed)
        except zstandard.ZstdError as error:
            damaged = Unavailable(f"blob {key} is damaged: {error}; restore it from a backup", code="damaged")
            metrics.count_store_error("blobs", damaged)
            raise damaged from error

    def _read(self, key: str) -> Any:
        """The compressed bytes. Files are read directly, which is faster than through the threads of obstore."""
        if self.folder is not None:
            return (self.folder / _path(key)).read_bytes()
        return self._store.get(_path(key)).bytes()

    def has(self, key: str) -> bool:
        return self._changed_at(key) is not None

    def age(self, key: str) -> timedelta | None:
        """Time since the blob was written; None if absent."""
        at = self._changed_at(key)
        return None if at is None else datetime.now(UTC) - at

    def scan(self, older_than: timedelta = timedelta.min) -> Iterator[list[tuple[str, int]]]:
        """Pages of (key, compressed bytes) of all blobs at least that old; other files appear by path."""
        now = datetime.now(UTC)
        try:
            for batch in self._store.list(chunk_size=500):
                old = [meta for meta in batch if now - meta["last_modified"] >= older_than]
                yield [(_key(meta["path"]), meta["size"]) for meta in old]
        except (BaseError, OSError) as error:
            raise self._translated("list", "", error) from error

    def remove(self, key: str) -> None:
        try:
            self._store.delete(_path(key))
        except FileNotFoundError:
            pass
        except (BaseError, OSError) as error:
            raise self._translated("remove", key, error) from error

    def partial_files(self, older_than: timedelta = GRACE) -> list[Path]:
        """Partial files left by killed processes; never read."""
        until = (datetime.now(UTC) - older_than).timestamp()
        paths = [] if self.folder is None else self.folder.glob("*/*#*")
        return [path for path in paths if UNFINISHED.search(path.name) and _written(path) <= until]

    def _write(self, key: str, packed: bytes) -> None:
        # Concurrent writers write the same bytes atomically, so the last one may win.
        try:
            self._store.put(_path(key), packed, use_multipart=False)
            if self.folder is not None:
                self._sync(self.folder / _path(key))
        except (BaseError, OSError) as error:
            raise self._translated("write", key, error) from error

    def _sync(self, path: Path) -> None:
        """Sync file and folders to disk, so that a blob survives a power loss if its row does."""
        try:
            _fsync(path)
            _fsync(path.parent)
            if path.parent not in self._synced:  # the entry in the parent folder
                _fsync(path.parent.parent)
                self._synced.add(path.parent)
        except OSError:
            path.unlink(missing_ok=True)  # the next `put` must write it again
            raise

    def _is_fresh(self, key: str, data: bytes) -> bool:
        """Whether the blob is intact, and young enough not to be collected before a row references it."""
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
            raise self._translated("look at", key, error) from error

    def _translated(self, action: str, key: str, error: Exception) -> Exception:
        """The CannotWrite or Unavailable that reports `error`, counted."""
        translated = self._translate(action, key, error)
        metrics.count_store_error("blobs", translated)
        return translated

    def _translate(self, action: str, key: str, error: Exception) -> Exception:
        code = _errno(error)
        if self.folder is not None and code is not None:
            message = f"cannot {action} {self.folder / _path(key) if key else self.folder}: {os.strerror(code)}"
            return CannotWrite(f"{message}; {remedy(code)}") if action == "write" else Unavailable(message)
        return Unavailable(f"{self.place} does not respond: {_first_line(error)}", headers={"Retry-After": "5"})


def blob_key(data: bytes) -> str:
    """Key of the blob with these bytes."""
    return hashlib.sha256(data).hexdigest()


def _folder_of(url: str | None, data: Path) -> Path | None:
    """Folder of the blobs; None for an object store."""
    if url is None:
        return (data / "blobs").resolve()
    return Path(unquote(urlsplit(url).path)).resolve() if url.startswith("file:") else None


def _store_at(url: str | None, folder: Path | None) -> Any:
    if folder is not None:
        return LocalStore(folder, mkdir=True)
    assert url is not None
    scheme = url.partition(":")[0]
    if scheme not in SCHEMES:
        raise BadUsage(f"REMAT_BLOBS_URL: unknown scheme {scheme[:20]!r}; use one of {', '.join(SCHEMES)}")
    return from_url(url, client_options=CLIENT_TIMEOUTS, retry_config=RETRIES)


def _path(key: str) -> str:
    return f"{key[:2]}/{key}.zst"


def _key(path: str) -> str:
    """The key of a path; the path itself if it is not a blob."""
    key = path.rpartition("/")[2].removesuffix(".zst")
    return key if KEY.fullmatch(key) and path == _path(key) else path


def _written(path: Path) -> float:
    """Modification time of a partial file; infinity once it was renamed."""
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
    """The errno of an error; obstore has it in the message only."""
    match = OS_ERROR.search(str(error))
    return int(match[1]) if match else getattr(error, "errno", None)
