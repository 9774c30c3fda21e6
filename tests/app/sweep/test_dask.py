"""A batch on the workers of Dask: processes that may have no children, and threads. Needs the extra `dask`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import remat


@pytest.mark.heavy
@pytest.mark.parametrize("processes", [True, False])
def test_dask_makes_the_plans_that_are_made_here(folder: Path, processes: bool, tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    asked: dict[str, Any] = {"budgets": ["80%", "60%"], "planners": ["greedy", "anneal"], "iterations": 50}
    here = remat.batch(folder, workers=1, **asked)
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=1, processes=processes, dashboard_address=None, local_directory=str(tmp_path)
    )
    with cluster, Client(cluster) as client:
        there = remat.batch(folder, executor=client.get_executor(), **asked)
    assert len(there) == 8
    for ours, theirs in zip(here, there, strict=True):
        assert (ours["key"], ours["state"]) == (theirs["key"], theirs["state"])
        assert ours["report"]["plan"] == theirs["report"]["plan"]
        assert ours["report"]["layout"] == theirs["report"]["layout"]
