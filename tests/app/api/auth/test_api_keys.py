"""Keys by themselves, where they are kept, and the command that makes them."""

from __future__ import annotations

import hmac
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.api.auth.api_keys import Quotas, hash_secret, new_key, split_key, verify_secret
from app.api.auth.key_store import DATABASE_FILE, AuditEntry, SqliteKeyStore
from app.cli import typer_app
from app.errors import NotFound

NOW = 1_800_000_000.0


def test_a_key_is_its_id_and_a_secret_of_256_bits() -> None:
    text, key = new_key("n", "t", frozenset({"read"}), Quotas(), NOW)
    parts = split_key(text)
    assert parts is not None and parts[0] == key.id and len(parts[1]) == 43
    assert verify_secret(parts[1], key)
    assert key.hash == hash_secret(parts[1])
    assert new_key("n", "t", frozenset(), Quotas(), NOW)[0] != text


@pytest.mark.parametrize("text", ["", "remat_", "remat_00_x", "x" * 10_000, "remat_" + "0" * 12 + "_" + "é" * 43])
def test_what_is_no_key_is_not_taken_apart(text: str) -> None:
    assert split_key(text) is None


def test_secrets_are_compared_in_constant_time_even_where_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    whole = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return whole(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    _, key = new_key("n", "t", frozenset(), Quotas(), NOW)
    assert not verify_secret("guess", key)
    assert not verify_secret("guess", None)
    assert [(len(a), len(b)) for a, b in compared] == [(32, 32), (32, 32)]


def test_a_key_ends_when_it_expires_or_is_revoked(tmp_path: Path) -> None:
    vault = SqliteKeyStore(tmp_path)
    _, key = new_key("n", "t", frozenset({"plan", "read"}), Quotas(nodes=7, solver_seconds=1.5), NOW, NOW + 60)
    vault.add(key)
    assert vault.key(key.id) == key
    assert [key.state(NOW + 59), key.state(NOW + 60)] == ["good", "expired"]
    other = SqliteKeyStore(tmp_path)  # another process
    assert other.revoke(key.id, NOW + 1).state(NOW + 1) == "revoked"
    found = vault.key(key.id)
    assert found is not None and found.revoked_at == NOW + 1
    vault.revoke(key.id, NOW + 2)
    assert vault.all_keys()[0].revoked_at == NOW + 1
    with pytest.raises(NotFound):
        vault.revoke("000000000000", NOW)


def test_nobody_else_reads_the_file_and_no_secret_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "create", "alice", "--data", str(tmp_path)]) == 0
    text = capsys.readouterr().out.strip()
    parts = split_key(text)
    assert parts is not None
    assert (tmp_path / DATABASE_FILE).stat().st_mode & 0o077 == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.glob(f"{DATABASE_FILE}*"))
    assert parts[0].encode() in kept
    assert parts[1].encode() not in kept


def test_solves_are_counted_once_and_by_the_day(tmp_path: Path) -> None:
    vault, day = SqliteKeyStore(tmp_path), 86_400
    noon = NOW // day * day + day / 2
    vault.charge("k", "op1", 10, noon)
    vault.charge("k", "op1", 99, noon)
    vault.charge("other", "op2", 99, noon)
    assert (vault.spent("k", noon), vault.running("k")) == (10, ["op1"])
    vault.settle("k", "op1", 3)
    assert (vault.spent("k", noon), vault.running("k")) == (3, [])
    assert vault.spent("k", noon + day) == 0


def test_a_grant_is_one_tenants_and_one_kinds(tmp_path: Path) -> None:
    vault = SqliteKeyStore(tmp_path)
    vault.grant("a", "graphs", "x")
    vault.grant("a", "graphs", "x")
    assert vault.granted("a", "graphs", ["x", "y"]) == {"x"}
    assert not vault.granted("b", "graphs", ["x"])
    assert not vault.granted("a", "operations", ["x"])


def test_the_audit_log_keeps_its_order(tmp_path: Path) -> None:
    vault = SqliteKeyStore(tmp_path)
    entries = [AuditEntry(NOW, None, None, "127.0.0.1", "POST", f"/{n}", 401) for n in range(3)]
    for entry in entries:
        vault.record(entry)
    assert vault.entries(2) == entries[:0:-1]


def test_the_command_makes_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path)]
    asked = ["--tenant", "team", "--scope", "read", "--expires", "90d", "--nodes", "500", "--solver-seconds", "60"]
    assert typer_app.run(["keys", "create", "alice", *asked, *data]) == 0
    said = capsys.readouterr()
    assert split_key(said.out.strip()) is not None
    assert typer_app.run(["keys", "list", "--json", *data]) == 0
    (key,) = json.loads(capsys.readouterr().out)["keys"]
    assert (key["name"], key["tenant"], key["scopes"], key["state"]) == ("alice", "team", ["read"], "good")
    assert (key["quotas"]["nodes"], key["quotas"]["solver_seconds"]) == (500, 60)
    assert re.match(r"\d{4}-", key["expires_at"])
    assert typer_app.run(["keys", "revoke", key["id"], *data]) == 0
    capsys.readouterr()
    assert typer_app.run(["keys", "list", *data]) == 0
    assert "revoked" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--scope", "all"],
        ["--expires", "soon"],
        ["--nodes", "0"],
        ["--expires", "-1d"],
        ["--expires", "0d"],
        ["--expires", "999999w"],
        ["--tenant", ""],
        ["--tenant", "a\nb"],
        ["--tenant", "a" * 201],
    ],
    ids=lambda wrong: f"{wrong[0]} {wrong[1][:9]!r}",
)
def test_a_key_that_cannot_be_made_is_refused(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typer_app.run(["keys", "create", "alice", *wrong, "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""
    assert not SqliteKeyStore(tmp_path).all_keys()


def test_a_key_has_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "create", " ", "--data", str(tmp_path)]) == 2
    assert "NAME ' '" in capsys.readouterr().err
    assert not SqliteKeyStore(tmp_path).all_keys()


def test_the_longest_duration_is_one_that_can_be_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "create", "alice", "--expires", "36500d", "--data", str(tmp_path)]) == 0
    assert typer_app.run(["keys", "list", "--data", str(tmp_path)]) == 0
    assert re.search(r"good +2\d{3}-", capsys.readouterr().out)


def test_an_unknown_id_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "revoke", "nobody", "--data", str(tmp_path)]) == 2
    assert "remat keys list" in capsys.readouterr().err


ANOTHER = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(*c.execute(sys.argv[2])); c.commit(); c.close()"


def test_what_two_processes_write_is_seen_by_both_however_many_threads_read(tmp_path: Path) -> None:
    def elsewhere(query: str) -> str:
        command = [sys.executable, "-c", ANOTHER, str(vault.path), query]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    vault = SqliteKeyStore(tmp_path)
    _, key = new_key("n", "t", frozenset({"read"}), Quotas(), NOW)
    vault.add(key)
    opened, done = threading.Event(), threading.Event()

    def stay() -> None:
        vault.key(key.id)  # over a connection of its own
        opened.set()
        done.wait()

    threading.Thread(target=stay, daemon=True).start()
    opened.wait()
    elsewhere("UPDATE keys SET revoked_at = 1")
    found = vault.key(key.id)
    assert found is not None and found.state(NOW) == "revoked"
    vault.grant("t", "graphs", "g")
    assert elsewhere("SELECT id FROM grants") == "('g',)"
    done.set()
