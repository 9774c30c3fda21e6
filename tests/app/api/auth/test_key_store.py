"""API keys, charges, sessions and the audit log in either database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from app.api.auth.api_keys import Quotas, new_key
from app.api.auth.key_store import AuditEntry, KeyStore
from app.errors import NotFound
from app.settings import Settings
from app.store.store import Store

NOW = 1_800_000_000.0


@pytest.fixture
def keys(store_settings: dict[str, Any]) -> Iterator[KeyStore]:
    store = Store.open_for_serving(Settings(**store_settings))
    yield KeyStore(store)
    store.close()


def test_a_key_ends_when_it_expires_or_is_revoked(keys: KeyStore, store_settings: dict[str, Any]) -> None:
    _, key = new_key("n", "t", frozenset({"plan", "read"}), Quotas(nodes=7, solver_seconds=1.5), NOW, NOW + 60)
    keys.add(key)
    assert keys.key(key.id) == key
    assert [key.state(NOW + 59), key.state(NOW + 60)] == ["good", "expired"]
    other = Store(Settings(**store_settings))  # of another process
    assert KeyStore(other).revoke(key.id, NOW + 1).state(NOW + 1) == "revoked"
    other.close()
    found = keys.key(key.id)
    assert found is not None and found.revoked_at == NOW + 1
    keys.revoke(key.id, NOW + 2)
    assert keys.all_keys()[0].revoked_at == NOW + 1
    with pytest.raises(NotFound, match="remat keys list"):
        keys.revoke("000000000000", NOW)


def test_solves_are_charged_once_and_by_the_day(keys: KeyStore) -> None:
    day = 86_400
    noon = NOW // day * day + day / 2
    keys.charge("k", "op1", 10, noon)
    keys.charge("k", "op1", 99, noon)
    keys.charge("other", "op2", 99, noon)
    assert (keys.spent("k", noon), keys.running("k")) == (10, ["op1"])
    keys.settle("k", "op1", 3)
    assert (keys.spent("k", noon), keys.running("k")) == (3, [])
    assert keys.spent("k", noon + day) == 0


def test_a_session_ends_by_time_or_by_logout(keys: KeyStore) -> None:
    keys.open_session(b"early", "k", NOW + 1, NOW)
    keys.open_session(b"late", "k", NOW + 100, NOW + 50)  # deletes expired sessions
    assert (keys.session(b"early"), keys.session(b"late")) == (None, ("k", NOW + 100))
    keys.close_session(b"late")
    assert keys.session(b"late") is None


def test_the_audit_log_keeps_its_order_and_has_a_largest_length(
    keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.auth.key_store.MAX_AUDIT_ROWS", 3)
    entries = [AuditEntry(NOW, None, "ab"[n % 2], "127.0.0.1", "POST", f"/{n}", 401) for n in range(5)]
    keys.record(*entries[:2])
    for entry in entries[2:]:
        keys.record(entry)
    assert keys.entries(2) == entries[:2:-1]
    assert keys.entries(10) == entries[:1:-1]
    assert keys.entries(10, "b") == [entries[3]]
