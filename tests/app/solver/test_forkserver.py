"""The parent of all children gets no secrets, and starts before a service has loaded its own code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.solver.forkserver import start_forkserver


def test_children_get_no_secrets_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {"REMAT_DATABASE_URL": "postgresql://u:p@h/d", "AWS_SECRET_ACCESS_KEY": "s", "PGPASSWORD": "p"}
    for name, text in {**secrets, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, text)
    given = dict[str, str]()
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: given.update(os.environ))
    start_forkserver.__wrapped__()
    assert given["OMP_NUM_THREADS"] == "1" and not set(secrets) & set(given)
    assert {name: os.environ[name] for name in secrets} == secrets


def test_starting_it_loads_no_code_of_the_service() -> None:
    loaded = "import sys, app.solver.forkserver; print(*(name for name in sys.modules if name.startswith('app.')))"
    done = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["app.solver", "app.solver.forkserver"]
