"""Keys by themselves, and the command that makes them."""

from __future__ import annotations

import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest

from app.api.auth.api_keys import Quotas, hash_secret, new_key, split_key, verify_secret
from app.api.auth.key_store import AuditEntry, KeyStore
from app.cli import typer_app
from app.settings import Settings
from app.store.database import DATABASE_FILE
from app.store.store import Store

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


def test_no_secret_is_in_the_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "create", "alice", "--data", str(tmp_path)]) == 0
    parts = split_key(capsys.readouterr().out.strip())
    assert parts is not None
    kept = b"".join(path.read_bytes() for path in tmp_path.glob(f"{DATABASE_FILE}*"))
    assert parts[0].encode() in kept
    assert parts[1].encode() not in kept


def listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    capsys.readouterr()
    assert typer_app.run(["keys", "list", "--json", "--data", str(tmp_path)]) == 0
    return list(json.loads(capsys.readouterr().out)["keys"])


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
    assert not listed(tmp_path, capsys)


def test_a_key_has_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "create", " ", "--data", str(tmp_path)]) == 2
    assert "NAME ' '" in capsys.readouterr().err
    assert not listed(tmp_path, capsys)


def test_the_longest_duration_is_one_that_can_be_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "create", "alice", "--expires", "36500d", "--data", str(tmp_path)]) == 0
    assert typer_app.run(["keys", "list", "--data", str(tmp_path)]) == 0
    assert re.search(r"good +2\d{3}-", capsys.readouterr().out)


def test_an_unknown_id_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typer_app.run(["keys", "revoke", "nobody", "--data", str(tmp_path)]) == 2
    assert "remat keys list" in capsys.readouterr().err


def test_the_command_shows_the_audit_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(tmp_path)]
    assert typer_app.run(["keys", "create", "alice", *data]) == 0
    store = Store(Settings(data=tmp_path))
    for tenant, path in (("a", "/v1/graphs"), (None, "/\x1b[2J")):
        KeyStore(store).record(AuditEntry(1_800_000_000.0, None, tenant, "127.0.0.1", "POST", path, 401))
    store.close()
    capsys.readouterr()
    assert typer_app.run(["audit", *data]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["time", "tenant", "key", "address", "status", "method", "path"]
    assert lines[-2].endswith(r"/\x1b[2J") and lines[-1].startswith("2027-01-15T08:00:00+00:00")
    assert typer_app.run(["audit", "--tenant", "a", "--limit", "5", "--json", *data]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["entries"]
    assert (entry["path"], entry["status"], entry["at"]) == ("/v1/graphs", 401, "2027-01-15T08:00:00+00:00")
    assert typer_app.run(["audit", "--data", str(tmp_path / "typo")]) == 2
    assert "no such data folder" in capsys.readouterr().err
