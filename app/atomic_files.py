"""Atomic file writes: a file is complete or absent.

bytes ──▶ .NAME.RANDOM.part ──fsync──▶ rename (replace) or link (create only) ──▶ NAME
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

PARTIAL_SUFFIX, RANDOM_BYTES = ".part", 8
#: Errnos of a file system, or a quota of it, without room.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PARTIAL_NAME = re.compile(rf"\..*\.[0-9a-f]{{{2 * RANDOM_BYTES}}}{re.escape(PARTIAL_SUFFIX)}", re.DOTALL)


class CannotWrite(Exception):
    """A file could not be written; no partial file is left."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path`, replacing its content. Raises CannotWrite with the old content intact.

    A device or a pipe, such as /dev/null, is written to in place, a link to a file remains one.
    """
    if _is_stream(path):
        with _translate_errors(path), path.open("wb") as stream:
            stream.write(data)
        return
    with _translate_errors(path):
        target = path.resolve()
    with _partial_file(target, data) as partial, _translate_errors(path):
        partial.replace(target)


def check_writable(path: Path) -> None:
    """Check, without writing, that a file can be created at `path`. Raises CannotWrite."""
    if _is_stream(path):
        return
    with _translate_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.stat()
        if not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        target = path.resolve()
        if not os.access(target.parent, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def create_atomic(path: Path, data: bytes) -> bool:
    """Whether this call created `path` with `data`; False if the path exists. Raises CannotWrite."""
    with _partial_file(path, data) as partial, _translate_errors(path):
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        return True


def _is_stream(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def remove_partial_files(folder: Path) -> int:
    """Number of partial files removed below `folder`, left by killed processes."""
    parts = [path for path in folder.rglob(f".*{PARTIAL_SUFFIX}") if PARTIAL_NAME.fullmatch(path.name)]
    for partial in parts:
        partial.unlink(missing_ok=True)
    return len(parts)


@contextlib.contextmanager
def _partial_file(path: Path, data: bytes) -> Iterator[Path]:
    partial = path.with_name(f".{path.name[:100]}.{secrets.token_hex(RANDOM_BYTES)}{PARTIAL_SUFFIX}")
    try:
        with _translate_errors(path), partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield partial
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}; {remedy(error.errno)}") from error


def remedy(code: int | None) -> str:
    """Remedy for the errno of a failed write."""
    if code in FULL:
        return "free disk space or choose another path; no partial file is left"
    if code in (errno.ENOENT, errno.ENOTDIR):
        return "create the folder first"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "choose a writable path"
    if code == errno.EISDIR:
        return "give the path of a file, not of a folder"
    return "choose another path"
