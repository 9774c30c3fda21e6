"""`remat migrate`, `remat gc`, `remat check-store`: what an operator does to a store, also while it is served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.cli.commands.files import demand_data_folder, to_json
from app.jobs.queue import Queue
from app.render.text import format_bytes
from app.settings import Settings
from app.store.database import migrate, require_current_schema
from app.store.garbage_collection import collect
from app.store.integrity_check import check_integrity
from app.store.store import Store


def run_migrate(data: Path | None, as_json: bool) -> int:
    """Exit code: 0 once the tables are what this program knows."""
    with _opened(data) as (store, _):
        before, after = migrate(store.engine)
        Queue(store.engine).prepare()
    said = "the tables are up to date" if before == after else f"migrated from {before or 'nothing'} to {after}"
    print(to_json({"before": before, "after": after}) if as_json else said)
    return 0


def run_gc(data: Path | None, keep_days: float | None, as_json: bool) -> int:
    """Exit code: 0 once everything that is old enough has gone."""
    with _opened(data, there=True) as (store, settings):
        taken = collect(store, settings.keep_days if keep_days is None else keep_days, settings.idempotency_days)
    counts = asdict(taken)
    print(to_json(counts) if as_json else f"{_listed(counts)}; {format_bytes(taken.blob_bytes)} freed")
    return 0


def run_check(data: Path | None, as_json: bool) -> int:
    """Exit code: 0 when all fits together, 1 when something does not."""
    with _opened(data, there=True) as (store, _):
        found = check_integrity(store)
    if as_json:
        print(to_json(asdict(found)))
    else:
        counts = {name: count for name, count in asdict(found).items() if name != "faults"}
        print("\n".join([*found.faults, _listed(counts)]))
    return 1 if found.fault_count else 0


@contextmanager
def _opened(data: Path | None, there: bool = False) -> Iterator[tuple[Store, Settings]]:
    """The store, which is `there` already, or made."""
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


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if "bytes" not in name)
