"""Files that are there whole or not at all.

bytes ──▶ .NAME.RANDOM.part ──fsync──▶ rename (replace) or link (create only) ──▶ NAME
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

PARTIAL_SUFFIX = ".part"


class CannotWrite(Exception):
    """A file that could not be written; nothing of it is left behind."""


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` at `path`, replacing what is there. Raises CannotWrite with the old content intact.

    A device or a pipe, such as /dev/null, is written to and stays what it is.
    """
    if _is_stream(path):
        with _explained(path), path.open("wb") as stream:
            stream.write(data)
        return
    with _part(path, data) as part, _explained(path):
        part.replace(path)


def check_writable(path: Path) -> None:
    """Returns where a file can be put at `path`, as far as can be told without writing it. Raises CannotWrite."""
    if _is_stream(path):
        return
    with _explained(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.stat()
        if not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def create_atomic(path: Path, data: bytes) -> bool:
    """Put `data` at `path` unless something is there; whether this call created it. Raises CannotWrite."""
    with _part(path, data) as part, _explained(path):
        try:
            os.link(part, path)
        except FileExistsError:
            return False
        return True


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def remove_partial_files(folder: Path) -> int:
    """Number of half-written files removed below `folder`, left by a process that was killed."""
    parts = list(folder.rglob(f".*{PARTIAL_SUFFIX}"))
    for part in parts:
        part.unlink(missing_ok=True)
    return len(parts)


@contextlib.contextmanager
def _part(path: Path, data: bytes) -> Iterator[Path]:
    part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}{PARTIAL_SUFFIX}")
    try:
        with _explained(path), part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}; {remedy(error.errno)}") from error


def remedy(code: int | None) -> str:
    """What to do about an error number of the system that kept something from being written."""
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free space there or name another place; nothing half written is left"
    if code in (errno.ENOENT, errno.ENOTDIR):
        return "make the folder first"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "name a place you may write to"
    if code == errno.EISDIR:
        return "name a file, not a folder"
    return "name another place"
