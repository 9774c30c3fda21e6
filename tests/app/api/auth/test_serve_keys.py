"""`remat serve --auth` and `remat keys` as processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from app.cli import typer_app


@pytest.fixture
def served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[str, str]]:
    """(address, key) of a running service."""
    assert typer_app.run(["keys", "create", "alice", "--data", str(tmp_path)]) == 0
    key = capsys.readouterr().out.strip()
    command = [sys.executable, "-m", "remat", "serve", "--auth", "--port", "0", "--data", str(tmp_path)]
    quiet = os.environ | {"REMAT_LOG_LEVEL": "warning", "REMAT_WORKERS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=quiet) as process:
        assert process.stderr is not None
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", process.stderr.readline())
        assert found is not None
        yield found[1], key
        process.kill()


def test_a_service_that_asks_for_keys_lets_one_in_until_it_is_revoked(served: tuple[str, str], tmp_path: Path) -> None:
    url, key = served
    headers = {"Authorization": f"Bearer {key}"}
    assert httpx2.get(f"{url}/v1/planners").status_code == 401
    assert httpx2.get(f"{url}/livez").status_code == 200
    assert httpx2.get(f"{url}/v1/planners", headers=headers).status_code == 200
    assert typer_app.run(["keys", "revoke", key.split("_")[1], "--data", str(tmp_path)]) == 0
    assert httpx2.get(f"{url}/v1/planners", headers=headers).json()["code"] == "revoked_key"


@pytest.mark.parametrize("where", [["--auth"], ["--host", "0.0.0.0"]], ids=" ".join)
def test_a_service_that_would_let_nobody_in_does_not_start(
    where: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typer_app.run(["keys", "create", "alice", "--data", str(tmp_path)]) == 0
    key = capsys.readouterr().out.strip()
    assert typer_app.run(["keys", "revoke", key.split("_")[1], "--data", str(tmp_path)]) == 0
    assert typer_app.run(["serve", *where, "--port", "0", "--data", str(tmp_path)]) == 2
    assert "remat keys create" in capsys.readouterr().err
