"""`remat migrate`, `gc` and `check-store` as an operator types them, beside a service that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import typer_app
from app.store import records
from app.store.store import Store
from tests.app.stores import GRAPH_ID, opened, solved

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], store_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("REMAT_DATA", str(store_settings["data"]))
    if "database_url" in store_settings:
        monkeypatch.setenv("REMAT_DATABASE_URL", store_settings["database_url"])

    def run(*arguments: str) -> tuple[int, Any]:
        code = typer_app.run([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def served(store_settings: dict[str, Any]) -> Any:
    store = opened(**store_settings)
    yield store
    store.close()


def test_a_store_is_migrated_once(run: Run) -> None:
    run("migrate")
    assert run("migrate") == (0, {"before": "0016", "after": "0016"})


def test_a_database_without_tables_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("gc", "check-store"):
        assert typer_app.run([command, "--data", str(tmp_path)]) == 2
        assert "run remat migrate" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["gc"], ["check-store"], ["keys", "list"], ["keys", "revoke", "key1"]])
def test_a_folder_that_is_not_there_is_told_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    missing = tmp_path / "typo"
    assert typer_app.run([*command, "--data", str(missing)]) == 2
    assert f"{missing}: no such data folder" in capsys.readouterr().err
    assert not missing.exists()


def test_old_plans_are_dropped_beside_a_service(run: Run, served: Store) -> None:
    records.save_plan(served, solved(), GRAPH_ID, "k1")
    assert run("gc")[1]["plans"] == 0
    code, taken = run("gc", "--keep-days", "0")
    assert (code, taken["plans"], taken["graphs"]) == (0, 1, 1)
    assert records.find_answer(served, "k1") is None


def test_a_store_is_looked_at_beside_a_service(run: Run, served: Store) -> None:
    assert run("check-store")[0] == 0
    served.blobs.remove(GRAPH_ID)
    code, found = run("check-store")
    assert (code, found["fault_count"], found["graphs"]) == (1, 1, 1)
    assert GRAPH_ID in found["faults"][0]


def test_who_plans_or_asks_for_help_loads_no_database(model: Path) -> None:
    code = """
import sys
from app.cli.typer_app import run
run(["--help"])
run(["plan", sys.argv[1], "--iterations", "1", "--layout", "none", "--execute", "no", "--json"])
print(sorted({"sqlalchemy", "alembic", "psycopg", "obstore"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
