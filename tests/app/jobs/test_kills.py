"""Nothing is lost and nothing happens twice when whatever a service is made of is killed; the long form is in bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kills import storm
from tests.postgres import Cluster


@pytest.mark.heavy
def test_every_job_has_one_result_whoever_is_killed(tmp_path: Path) -> None:
    found = storm(tmp_path, jobs=10, kills=5, seed=3)
    assert found["wrong"] == []


@pytest.mark.heavy
def test_every_job_has_one_result_whoever_is_killed_on_postgresql(tmp_path: Path, postgres: Cluster) -> None:
    found = storm(tmp_path, jobs=10, kills=6, seed=4, cluster=postgres)
    assert found["wrong"] == []
