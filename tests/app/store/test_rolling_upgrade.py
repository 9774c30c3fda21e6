"""Services and workers of two versions side by side on one PostgreSQL, before, during and after a migration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import app
from tests.app.cli.admin.test_serve import PATIENCE_S, started, stop
from tests.app.conftest import chain
from tests.postgres import Cluster

pytestmark = pytest.mark.heavy

CHECKOUT = Path(app.__file__).parents[1]
HEAD = max(path.name[1:5] for path in (CHECKOUT / "app/store/migrations/versions").glob("*/r*.py"))
MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{revision}", "{before}"
ADDITIVE = {additive}


def upgrade() -> None:
    op.add_column("operations", sa.Column("added_in_{revision}", sa.Text))
"""


class Version:
    """Processes of one version of the program on one database: this checkout's, or with further migrations."""

    def __init__(self, folder: Path, environment: dict[str, str], **migrations: bool):
        """`migrations`: revision -> whether it is additive."""
        self.folder = folder
        shutil.copytree(CHECKOUT / "app", folder / "app")
        before = HEAD
        for revision, additive in migrations.items():
            text = MIGRATION.format(revision=revision, before=before, additive=additive)
            (folder / f"app/store/migrations/versions/r{revision}.py").write_text(text)
            before = revision
        self.environment = environment | {"PYTHONPATH": f"{folder}:{CHECKOUT}"}
        self.running: list[subprocess.Popen[str]] = []

    def serve(self) -> str:
        process, url = started(self.folder / "data", "--no-auth", cwd=self.folder, **self.environment)
        self.running.append(process)
        return url

    def worker(self) -> None:
        command = [sys.executable, "-m", "remat", "worker", "--slots", "1"]
        environment = os.environ | self.environment
        process = subprocess.Popen(command, env=environment, cwd=self.folder, stderr=subprocess.PIPE, text=True)
        self.running.append(process)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, environment = [sys.executable, "-m", "remat", *arguments], os.environ | self.environment
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)

    def stop(self) -> None:
        while self.running:
            stop(self.running.pop())


@pytest.fixture
def environment(tmp_path: Path, postgres: Cluster, migrated: str) -> dict[str, str]:
    (tmp_path / "blobs").mkdir()
    url = postgres.database(tmp_path.name, like=migrated)
    return {"REMAT_DATABASE_URL": url, "REMAT_BLOBS_URL": f"file://{tmp_path}/blobs", "REMAT_WORKERS": "0"}


@pytest.fixture
def versions(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[Version, Version, Version]]:
    """This version, one with an additive migration, and one with another that is not."""
    made = (
        Version(tmp_path / "old", environment),
        Version(tmp_path / "new", environment, x001=True),
        Version(tmp_path / "breaking", environment, x001=True, x002=False),
    )
    yield made
    for version in made:
        version.stop()


def plan(url: str, seed: int) -> int:
    request = {"graph": chain(12), "budget": "60%", "planner": "greedy", "seed": seed, "execute": "no"}
    return httpx2.post(f"{url}/v1/plans", json=request, headers={"prefer": "wait=60"}, timeout=PATIENCE_S).status_code


def test_versions_run_side_by_side_through_an_additive_migration(versions: tuple[Version, Version, Version]) -> None:
    old, new, breaking = versions
    one = old.serve()
    old.worker()
    refused = new.run("worker")
    assert refused.returncode == 2 and "run remat migrate" in refused.stderr

    statuses, is_over = list[int](), threading.Event()

    def ask() -> None:
        while not is_over.wait(0.2):
            statuses.append(plan(one, len(statuses)))

    asking = threading.Thread(target=ask)
    asking.start()
    assert "migrated from" in new.run("migrate", "--wait", "60").stdout
    two = new.serve()
    new.worker()
    assert [plan(two, 1000 + k) for k in range(5)] == [201] * 5
    is_over.set()
    asking.join()
    assert statuses and set(statuses) == {201}
    assert old.run("migrate").stdout == "schema is up to date\n"
    assert [httpx2.get(f"{url}/readyz", timeout=PATIENCE_S).status_code for url in (one, two)] == [200, 200]

    old.stop()
    assert [plan(two, 2000 + k) for k in range(3)] == [201] * 3
    assert plan(old.serve(), 3000) == 201  # and back again

    refused = breaking.run("migrate")
    assert refused.returncode == 2 and "stop the workers and services" in refused.stderr
    old.stop()
    new.stop()
    assert "migrated from x001 to x002" in breaking.run("migrate", "--wait", "60").stdout
    for version in (old, new):
        refused = version.run("worker")
        assert refused.returncode == 2 and "newer version of remat" in refused.stderr
