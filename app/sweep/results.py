"""Results folder of a batch. A crash loses no finished item.

FOLDER/results.jsonl     one line per item, in order of completion, each synced before the next is written
FOLDER/plans/KEY.json    its report, with the source graph; written before its line
FOLDER/token             idempotency token of the batch at a service; only with --engine server
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from app.atomic_files import CannotWrite, remedy, remove_partial_files, write_atomic
from app.errors import BadUsage

RESULTS, PLANS, TOKEN = "results.jsonl", "plans", "token"
#: States of an item that has ended. `--resume` retries `stopped`, and `failed` with an internal error.
SUCCEEDED, OVER_BUDGET, FAILED, STOPPED = "succeeded", "over_budget", "failed", "stopped"

Row = dict[str, Any]


class ResultsFolder:
    """Results in a folder, open for appending. `rows`: key -> its last line."""

    def __init__(self, folder: Path, file: IO[bytes], rows: dict[str, Row]):
        self.folder, self._file, self.rows = folder, file, rows

    def is_finished(self, key: str) -> bool:
        """Whether the item has a final result."""
        row = self.rows.get(key)
        if row is None or row["state"] == STOPPED:
            return False
        return bool(row["state"] != FAILED or row["error"]["status"] < 500)

    def add(self, row: Mapping[str, Any], report: bytes | None) -> Row:
        """Append a result; returns the row with the path of its report. Raises CannotWrite."""
        stored = {**row, "plan": None}
        if report is not None:
            stored["plan"] = f"{PLANS}/{row['key']}.json"
            write_atomic(self.folder / stored["plan"], report)
        try:
            self._file.write(msgspec.json.encode(stored) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            path = self.folder / RESULTS
            raise CannotWrite(f"cannot write {path}: {error.strerror}; {remedy(error.errno)}") from error
        self.rows[stored["key"]] = stored
        return stored

    def token(self) -> str:
        """Secret token that identifies this folder's batch at a service. Raises CannotWrite."""
        path = self.folder / TOKEN
        if not path.exists():
            write_atomic(path, secrets.token_hex(32).encode())
        return path.read_text().strip()

    def report(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The report of a row; None without one, or if its file is missing or unreadable."""
        if row["plan"] is None:
            return None
        try:
            report: dict[str, Any] = msgspec.json.decode((self.folder / row["plan"]).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return report


@contextlib.contextmanager
def open_results(folder: Path, resume: bool) -> Iterator[ResultsFolder]:
    """The results of `folder`, under an exclusive lock. Raises BadUsage, CannotWrite.

    An incomplete last line is truncated. Without `resume` the folder must have no results.
    """
    path = folder / RESULTS
    try:
        (folder / PLANS).mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}; {remedy(error.errno)}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            message = f"{folder} is locked by another batch; wait for it, or name another folder"
            raise BadUsage(message, code="folder_in_use") from None
        rows = _rows(file, path)
        if rows and not resume:
            message = f"{path} has results of {len(rows)} plans; continue with --resume, or name another folder"
            raise BadUsage(message, code="results_exist")
        remove_partial_files(folder)
        yield ResultsFolder(folder, file, rows)


def _rows(file: IO[bytes], path: Path) -> dict[str, Row]:
    file.seek(0)
    data = file.read()
    complete = data.rfind(b"\n") + 1
    file.truncate(complete)
    rows: dict[str, Row] = {}
    for number, line in enumerate(data[:complete].splitlines(), 1):
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
            rows[row["key"]] = row
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            message = f"{path}, line {number}: not a result ({error}); delete the line and continue with --resume"
            raise BadUsage(message, code="bad_results") from error
    return rows
