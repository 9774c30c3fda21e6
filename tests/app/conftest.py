"""Documents and services that the tests of this room share."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sqlalchemy as sa
from onnx import helper, numpy_helper
from starlette.testclient import TestClient

from app.api.main import create_app
from app.jobs import worker
from app.jobs.batches import scheduler
from app.settings import Settings
from app.store import store
from app.store.database import DATABASE_FILE, engine_of
from app.store.schema import migrate
from tests.postgres import Cluster, binaries


def value(name: str, role: str = "activation", shape: tuple[int, ...] = (64, 64)) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "dtype": "float32", "role": role}


def chain(length: int = 4, name: str = "chain") -> dict[str, Any]:
    """A training step drawn by hand: every backward node reads the forward value above it.

    x ── f0 ── f1 ── f2 ──╮
          ╰──╮  ╰──╮   ╰──╮
    dx ── b0 ─── b1 ─── b2
    """
    forward = [
        {"name": f"f{i}", "op": "own::Block", "inputs": [f"h{i - 1}" if i else "x"], "outputs": [f"h{i}"]}
        for i in range(length)
    ]
    backward = [
        {
            "name": f"b{i}",
            "op": "own::BlockGrad",
            "inputs": [f"h{i}", f"g{i + 1}" if i + 1 < length else f"h{length - 1}"],
            "outputs": [f"g{i}"],
            "phase": "backward",
        }
        for i in reversed(range(length))
    ]
    values = [value("x", "input")] + [value(f"{kind}{i}") for kind in "hg" for i in range(length)]
    return {"format": "remat/1", "name": name, "values": values, "nodes": forward + backward, "outputs": ["g0"]}


def onnx_file(rows: int) -> bytes:
    """A network as an exporter writes it: its graph has a name that says nothing."""
    weight = numpy_helper.from_array(np.ones((16, 8), np.float32), "weight")
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"]), helper.make_node("ReduceMean", ["y"], ["loss"])]
    infos = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [rows, 16]), ("loss", [1, 1]))
    ]
    graph = helper.make_graph(nodes, "main_graph", infos[:1], infos[1:], [weight])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def one_layer() -> dict[str, Any]:
    """The example of the wire contract, with a loss."""
    return {
        "format": "remat/1",
        "name": "one layer",
        "opset": {"": 21},
        "values": [value("x", "input", (8, 16)), value("w1", "parameter", (16, 4)), value("h", shape=(8, 4))],
        "nodes": [
            {"name": "fc1", "op": "MatMul", "inputs": ["x", "w1"], "outputs": ["h"], "attributes": {}},
            {"name": "mean", "op": "ReduceMean", "inputs": ["h"], "outputs": ["loss"], "attributes": {"keepdims": 0}},
        ],
        "outputs": ["loss"],
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A chain as a file."""
    path = tmp_path / "chain.json"
    path.write_text(json.dumps(chain()))
    return path


@pytest.fixture(scope="session", autouse=True)
def new_databases_are_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of this process that has no SQLite file gets a copy of a migrated one, in a tenth of the time.

    Other processes, `remat migrate` and tests of `migrate` run all migrations.
    """

    @functools.cache
    def migrated_file() -> bytes:
        folder = tmp_path_factory.mktemp("migrated")
        engine = engine_of(None, folder)
        migrate(engine)
        engine.dispose()
        return (folder / DATABASE_FILE).read_bytes()

    def migrate_copy(engine: sa.Engine) -> tuple[str | None, str]:
        file = Path(str(engine.url.database))
        if not file.exists():
            with contextlib.suppress(OSError):  # of a folder that cannot be written; `migrate` says so
                file.write_bytes(migrated_file())
        return migrate(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "migrate", migrate_copy)
        yield


@pytest.fixture(scope="session", autouse=True)
def workers_look_often() -> Iterator[None]:
    """Workers of this process look for progress, cancel requests and items of batches in a fifth of the time."""
    pauses = ((worker, "POLL_S"), (scheduler, "WOKEN_POLL_S"), (scheduler, "BUSY_POLL_S"))
    with pytest.MonkeyPatch.context() as patch:
        for module, name in pauses:
            patch.setattr(module, name, getattr(module, name) / 5)
        yield


@pytest.fixture(scope="package")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(
        data=tmp_path_factory.mktemp("data"), workers=1, queue=2, wait_seconds=60, drain_seconds=1, kill_seconds=60
    )


@pytest.fixture(scope="package")
def client(settings: Settings) -> Iterator[TestClient]:
    """One service for every test of the package, as it would run for long."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL of this run; without its programs there is none, which .ci/run does not let pass."""
    if binaries() is None:
        assert not os.environ.get("REMAT_TEST_POSTGRES"), "PostgreSQL is not installed"
        pytest.skip("PostgreSQL is not installed")
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def migrated(postgres: Cluster) -> str:
    """Name of a database with all tables and nothing in them: to copy it takes a tenth of making them."""
    engine = engine_of(postgres.database("migrated"), Path())
    migrate(engine)
    engine.dispose()
    return "migrated"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.heavy)])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Settings of an empty store of either kind, ready to be opened."""
    if request.param == "sqlite":
        return {"data": tmp_path}
    url = request.getfixturevalue("postgres").database(tmp_path.name, like=request.getfixturevalue("migrated"))
    return {"data": tmp_path, "database_url": url}
