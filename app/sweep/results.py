"""What a batch found, kept so that a kill loses nothing that was finished.

FOLDER/results.jsonl     a line an item, in the order they ended; each is on the disk before the next begins
FOLDER/plans/KEY.json    its report, with the graph that was planned; there before its line
FOLDER/token             by which a service knows the batch again; there where one was asked
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
#: States of an item that has ended. `failed` for a reason that may pass, and `stopped`, are asked again.
SUCCEEDED, OVER_BUDGET, FAILED, STOPPED = "succeeded", "over_budget", "failed", "stopped"

Row = dict[str, Any]


class ResultsFolder:
    """The results in a folder, open for more. `rows` has the last line of each key."""

    def __init__(self, folder: Path, file: IO[bytes], rows: dict[str, Row]):
        self.folder, self._file, self.rows = folder, file, rows

    def is_finished(self, key: str) -> bool:
        """Whether the question has an answer that another run would not better."""
        row = self.rows.get(key)
        if row is None or row["state"] == STOPPED:
            return False
        return bool(row["state"] != FAILED or row["error"]["status"] < 500)

    def add(self, row: Mapping[str, Any], report: bytes | None) -> Row:
        """The row as kept, with the report's place. Raises CannotWrite."""
        kept = {**row, "plan": None}
        if report is not None:
            kept["plan"] = f"{PLANS}/{row['key']}.json"
            write_atomic(self.folder / kept["plan"], report)
        try:
            self._file.write(msgspec.json.encode(kept) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            path = self.folder / RESULTS
            raise CannotWrite(f"cannot write {path}: {error.strerror}; {remedy(error.errno)}") from error
        self.rows[kept["key"]] = kept
        return kept

    def token(self) -> str:
        """What names this folder's batch to a service, and nobody else has. Raises CannotWrite."""
        path = self.folder / TOKEN
        if not path.exists():
            write_atomic(path, secrets.token_hex(32).encode())
        return path.read_text().strip()

    def report(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The report of a row; None where it has none, or the file has gone."""
        if row["plan"] is None:
            return None
        try:
            found: dict[str, Any] = msgspec.json.decode((self.folder / row["plan"]).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return found


@contextlib.contextmanager
def open_results(folder: Path, resume: bool) -> Iterator[ResultsFolder]:
    """The results of `folder`, which nobody else writes meanwhile. Raises BadUsage, CannotWrite.

    A last line that a kill cut short is dropped. Without `resume` there must be no results yet.
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
            said = f"another batch writes to {folder}; wait for it, or name another folder"
            raise BadUsage(said, code="folder_in_use") from None
        rows = _rows(file, path)
        if rows and not resume:
            said = f"{path} has results of {len(rows)} plans; go on with --resume, or name another folder"
            raise BadUsage(said, code="results_exist")
        remove_partial_files(folder)
        yield ResultsFolder(folder, file, rows)


def _rows(file: IO[bytes], path: Path) -> dict[str, Row]:
    file.seek(0)
    data = file.read()
    whole = data.rfind(b"\n") + 1
    file.truncate(whole)
    rows: dict[str, Row] = {}
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
            rows[row["key"]] = row
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            said = f"{path}, line {number}: not a result ({error}); take the line out, and go on with --resume"
            raise BadUsage(said, code="bad_results") from error
    return rows
