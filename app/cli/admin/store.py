"""`remat migrate`, `remat gc`, `remat check-store`: store maintenance, also while the service runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli.console.files import demand_data_folder, to_json
from app.errors import Unavailable
from app.render.text import format_bytes
from app.settings import Settings
from app.store.maintenance.garbage_collection import collect
from app.store.maintenance.integrity_check import check_integrity
from app.store.schema import migrate, require_current_schema
from app.store.store import Store

RETRY_S = 1.0  # between attempts to reach the database


def run_migrate(data: Path | None, wait: float, as_json: bool) -> int:
    """Exit code: 0 after the schema is current. A database that does not answer is tried again for `wait` seconds."""
    until = time.monotonic() + wait
    with _opened(data) as (store, _):
        while True:
            try:
                before, after = migrate(store.engine)
                break
            except Unavailable as error:
                if error.code == "damaged" or time.monotonic() + RETRY_S > until:
                    raise
                time.sleep(RETRY_S)
    message = "schema is up to date" if before == after else f"migrated from {before or 'nothing'} to {after}"
    print(to_json({"before": before, "after": after}) if as_json else message)
    return 0


def run_gc(data: Path | None, keep_days: float | None, as_json: bool) -> int:
    """Exit code: 0 after expired rows and files are deleted."""
    with _opened(data, there=True) as (store, settings):
        deleted = collect(store, settings.keep_days if keep_days is None else keep_days, settings.idempotency_days)
    counts = asdict(deleted)
    print(to_json(counts) if as_json else f"{_count_text(counts)}; {format_bytes(deleted.blob_bytes)} freed")
    return 0


def run_check(data: Path | None, as_json: bool) -> int:
    """Exit code: 0 without faults, 1 with faults."""
    with _opened(data, there=True) as (store, _):
        result = check_integrity(store)
    if as_json:
        print(to_json(asdict(result)))
    else:
        counts = {name: count for name, count in asdict(result).items() if name not in ("faults", "fault_count")}
        verdict = f"{result.fault_count} faults found" if result.fault_count else "no faults found"
        print("\n".join([*result.faults, f"{_count_text(counts)}; {verdict}"]))
    return 1 if result.fault_count else 0


@contextmanager
def _opened(data: Path | None, there: bool = False) -> Iterator[tuple[Store, Settings]]:
    """The store, closed on exit; `there`: it must exist with a current schema."""
    given: dict[str, Any] = {} if data is None else {"data": data}
    settings = Settings(**given)
    if there and settings.database_url is None:
        demand_data_folder(settings.data)
    store = Store(settings)
    try:
        if there:
            require_current_schema(store.engine)
        yield store, settings
    finally:
        store.close()


def _count_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if "bytes" not in name)
