"""The key file of older versions is imported once, with what was granted and written down in it."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from app.api.auth.api_keys import Quotas, new_key
from app.api.auth.key_files import IMPORTED_FILE, KEY_FILE, import_key_file
from app.api.auth.key_store import AuditEntry, KeyStore
from app.atomic_files import CannotWrite
from app.jobs.interface import Operation
from app.store import records
from app.store.tables import graphs, operations, results
from app.store.tenancy import owns
from tests.app.stores import GRAPH_ID, add, opened, solved

#: The tables that versions before the import wrote.
OLDER_TABLES = """
CREATE TABLE keys (
    id TEXT PRIMARY KEY, hash BLOB NOT NULL, name TEXT NOT NULL, tenant TEXT NOT NULL, scopes TEXT NOT NULL,
    quotas TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, revoked_at REAL);
CREATE TABLE grants (
    tenant TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (tenant, kind, id)) WITHOUT ROWID;
CREATE TABLE solves (
    id TEXT NOT NULL, key_id TEXT NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL, ended INTEGER NOT NULL,
    PRIMARY KEY (key_id, id)) WITHOUT ROWID;
CREATE TABLE audit (
    at REAL NOT NULL, key_id TEXT, tenant TEXT, peer TEXT, method TEXT NOT NULL, path TEXT NOT NULL,
    status INTEGER NOT NULL);
CREATE TABLE sessions (hash BLOB PRIMARY KEY, key_id TEXT NOT NULL, ends_at REAL NOT NULL) WITHOUT ROWID;
"""
NOW = 1_800_000_000.0
ENTRIES = [AuditEntry(NOW + n, None, "a", None, "POST", f"/{n}", 201) for n in range(2)]
TEXT, KEY = new_key("n", "a", frozenset({"plan", "read"}), Quotas(nodes=7), NOW)


def write_key_file(folder: Path, *grants: tuple[str, str, str]) -> None:
    with sqlite3.connect(folder / KEY_FILE) as file:
        file.executescript(OLDER_TABLES)
        row = (KEY.id, KEY.hash, KEY.name, KEY.tenant, "plan read", json.dumps(asdict(KEY.quotas)), NOW, None, None)
        file.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        file.executemany("INSERT INTO grants VALUES (?, ?, ?)", grants)
        file.execute("INSERT INTO solves VALUES ('op1', ?, ?, 2.5, 1)", (KEY.id, NOW))
        file.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", [tuple(asdict(e).values()) for e in ENTRIES])
        file.execute("INSERT INTO sessions VALUES (?, ?, ?)", (b"hash", KEY.id, NOW + 9))
    file.close()


def test_everything_is_imported_and_the_file_renamed(
    store_settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(**store_settings)
    at, curve = records.now(), {"document": {"points": [{}]}, "plans": [solved()]}
    found = records.save_result(store, "curve", curve, GRAPH_ID)
    add(store, Operation("op1", "k", GRAPH_ID, {}, at, "curve", "succeeded", ended_at=at, found=found))
    folder, gone = store_settings["data"], "0" * 64
    write_key_file(folder, ("a", "operations", "op1"), ("b", "graphs", GRAPH_ID), ("b", "results", gone))
    with caplog.at_level(logging.WARNING):
        import_key_file(store)
    assert "event=key_file_imported" in caplog.text and "keys=1 grants=3" in caplog.text
    keys = KeyStore(store)
    assert keys.key(KEY.id) == KEY
    assert (keys.spent(KEY.id, NOW), keys.session(b"hash")) == (2.5, (KEY.id, NOW + 9))
    assert keys.entries(10) == ENTRIES[::-1]
    assert store.row(operations, "op1")["tenant"] == "a"
    assert owns(store, results, found, "a") and not owns(store, results, found, "b")
    assert owns(store, graphs, GRAPH_ID, "a") and owns(store, graphs, GRAPH_ID, "b")
    assert not (folder / KEY_FILE).exists() and (folder / IMPORTED_FILE).exists()
    store.close()


def test_an_interrupted_import_is_repeated_and_the_database_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    write_key_file(tmp_path)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        with pytest.raises(CannotWrite, match="rename or remove it"):
            import_key_file(store)
    keys = KeyStore(store)
    keys.revoke(KEY.id, NOW)
    import_key_file(store)
    assert [key.state(NOW) for key in keys.all_keys()] == ["revoked"]
    assert keys.entries(10) == ENTRIES[::-1]
    import_key_file(store)  # nothing left to import
    store.close()


def test_a_damaged_key_file_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / KEY_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(CannotWrite, match="restore a backup"):
        import_key_file(store)
    assert (tmp_path / KEY_FILE).exists()
    store.close()
