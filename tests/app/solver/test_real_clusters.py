"""Tasks on clusters of Dask and of Ray that run here: their limits, and a cluster that lacks remat."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import BadUsage, ProblemDetails, SolveFailed
from app.solver.clusters.connect import connect
from app.solver.clusters.runner import ClusterRunner
from tests.app.clusters import ENGINES, LocalCluster, cluster_of
from tests.app.conftest import chain
from tests.app.solver.test_child_process import payload

pytestmark = [pytest.mark.clusters, pytest.mark.parametrize("engine", ENGINES)]
MIB = 1 << 20


def runner_on(cluster: LocalCluster, memory_bytes: int) -> ClusterRunner:
    return ClusterRunner(lambda: connect(cluster.engine, cluster.address, "--solve-on"), memory_bytes, 5)


def test_the_memory_limit_of_the_service_holds_on_the_cluster(engine: str) -> None:
    large = payload() | {"data": json.dumps(chain(20_000)).encode()}
    single = ("--no-nanny", "--nworkers", "1") if engine == "dask" else ()  # a worker under a nanny has its limit
    with (
        cluster_of(engine, *single) as cluster,
        pytest.raises(ProblemDetails) as caught,
        closing(runner_on(cluster, 64 * MIB)) as runner,
    ):
        runner.run("solve", large, 60)
    assert (caught.value.body["code"], caught.value.body["limit"]["value"]) == ("out_of_memory", 64 * MIB)


def test_a_cluster_without_remat_is_one_message(engine: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['app'] = None  # no import finds it\n")
    with (
        cluster_of(engine, imports=tmp_path) as cluster,
        pytest.raises((BadUsage, SolveFailed), match="cannot import remat") as caught,
        closing(runner_on(cluster, 4096 * MIB)) as runner,
    ):
        runner.run("solve", payload(), 60)
    assert caught.value.code == "version_mismatch"
