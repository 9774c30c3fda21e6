"""The object store of `docker-compose.yml` starts as a process, SeaweedFS of the extra `objects`, and has the blobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import obstore
import pytest

from tests.app.conftest import chain
from tests.app.test_compose import ROOT, compose, started

WEED = Path(sys.executable).with_name("weed")
HOST = "127.0.0.77"  # stands for the host name `objects`: a loopback address where nothing else listens
PATIENCE_S = 120.0


def place() -> dict[str, str]:
    """What `docker compose --env-file deploy/objects.env` gives to our services."""
    lines = (ROOT / "deploy" / "objects.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name: value.replace("objects:", f"{HOST}:") for name, value in given.items()}


def on_this_host(command: list[str]) -> list[str]:
    return [re.sub(r"(?<==)objects\b", HOST, word) for word in command]


@contextmanager
def object_store(services: dict[str, Any], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The services `objects`, until its health check passes, and `bucket`."""
    assert WEED.exists(), "install the extra `objects`"
    command = [word.replace("/data", str(folder)) for word in on_this_host(services["objects"]["command"])]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([str(WEED), *command], env=os.environ | environment, stdout=log, stderr=log)
    try:
        (url,) = re.findall(r"http://\S+", services["objects"]["healthcheck"]["test"][1])
        until = time.monotonic() + PATIENCE_S
        while not _responds(url):
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.2)
        made = [*services["bucket"]["entrypoint"], *on_this_host(services["bucket"]["command"])]
        path = {"PATH": f"{WEED.parent}:{os.environ['PATH']}"}
        subprocess.run(made, env=os.environ | path, check=True, capture_output=True, timeout=PATIENCE_S)
        yield
    finally:
        process.kill()
        process.wait()


def _responds(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).is_success
    except httpx2.TransportError:
        return False


@pytest.mark.heavy
@pytest.mark.parametrize("store_settings", ["postgresql"], indirect=True)
def test_blobs_lie_in_the_object_store_beside_the_service(store_settings: dict[str, Any], tmp_path: Path) -> None:
    services, given = compose(), place()
    assert set(given) <= set(services["api"]["environment"])
    environment = given | {
        "REMAT_DATABASE_URL": store_settings["database_url"],
        "REMAT_DATA": str(tmp_path / "data"),
        "REMAT_LOG_LEVEL": "warning",
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "objects").mkdir()
    with object_store(services, tmp_path / "objects", given):
        with started(services["migrate"], environment) as migrating:
            assert migrating.wait(PATIENCE_S) == 0
        api = services["api"] | {"command": ["0" if word == "8000" else word for word in services["api"]["command"]]}
        with started(api, environment | {"REMAT_WORKERS": "0"}) as serving, started(services["worker"], environment):
            assert serving.stderr is not None
            found = re.search(r":(\d+)\n", serving.stderr.readline())
            assert found is not None
            url = f"http://127.0.0.1:{found[1]}"
            request = {"graph": chain(), "budget": "80%"}
            answer = httpx2.post(f"{url}/v1/plans", json=request, headers={"prefer": "wait=60"}, timeout=PATIENCE_S)
            assert answer.status_code == 201, answer.text
            report = httpx2.get(f"{url}{answer.headers['location']}", timeout=60).json()
        store = obstore.store.from_url(
            given["REMAT_BLOBS_URL"],
            endpoint=given["AWS_ENDPOINT_URL"],
            region=given["AWS_REGION"],
            access_key_id=given["AWS_ACCESS_KEY_ID"],
            secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True},
        )
        assert report["checked"] is True and len(store.list().collect()) >= 2  # the graph and the plan
        stranger = httpx2.get(f"{given['AWS_ENDPOINT_URL']}/remat?list-type=2", timeout=60)
        assert stranger.status_code == 403
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.stat().st_size > 1 << 10]
