"""`remat audit`: the latest lines of a service's audit log, also while the service runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from app.api.auth.key_store import AuditEntry
from app.cli.admin.keys import opened_key_store, timestamp
from app.cli.console.files import to_json
from app.render.text import table


def run_audit(data: Path | None, limit: int, tenant: str | None, as_json: bool) -> int:
    """Exit code 0 after the lines are printed, newest first."""
    with opened_key_store(data, there=True) as key_store:
        entries = key_store.entries(limit, tenant)
    if as_json:
        print(to_json({"entries": [asdict(entry) | {"at": timestamp(entry.at)} for entry in entries]}))
    else:
        head = ("time", "tenant", "key", "address", "status", "method", "path")
        print("\n".join(table(head, list(map(_row, entries)))))
    return 0


def _row(entry: AuditEntry) -> tuple[str, ...]:
    caller = entry.tenant or "-", entry.key_id or "-", entry.peer or "-"
    path = entry.path.encode("unicode_escape").decode()  # clients choose it: no control characters on a terminal
    return (timestamp(entry.at) or "", *caller, str(entry.status), entry.method, path)
