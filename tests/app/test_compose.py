"""`docker-compose.yml` says what it should, and its commands start as processes. Docker itself is not asked."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
import yaml
from starlette.testclient import TestClient

from app.cli.typer_app import app as cli
from app.settings import Settings
from app.solver.forkserver import SECRET
from tests.app.conftest import chain
from tests.app.pages.seeded import fill
from tests.postgres import Cluster, binaries

ROOT = Path(__file__).parents[2]
OURS = ("migrate", "api", "worker")
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def substituted(value: Any, given: dict[str, str]) -> Any:
    """The value as Compose reads it: `${NAME:-DEFAULT}` is what is given, or the default."""
    if isinstance(value, dict):
        return {name: substituted(entry, given) for name, entry in value.items()}
    if isinstance(value, list):
        return [substituted(entry, given) for entry in value]
    return VARIABLE.sub(lambda found: given.get(found[1], found[2] or ""), value) if isinstance(value, str) else value


def compose(**given: str) -> dict[str, Any]:
    """The services by name."""
    read = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services: dict[str, Any] = substituted(read["services"], given)
    return services


@pytest.mark.parametrize("name", OURS)
def test_our_services_run_without_rights_on_a_root_they_cannot_write(name: str) -> None:
    service = compose()[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert {volume.split(":")[1] for volume in service["volumes"]} == {"/data"}  # an old volume hides no kernels
    assert service["init"] is True and service["pids_limit"] > 0 and service["mem_limit"]


def test_the_image_is_built_once_and_never_pulled() -> None:
    services = compose()
    assert [name for name in services if "build" in services[name]] == ["migrate"]
    assert {services[name]["pull_policy"] for name in OURS} == {"build", "never"}


def test_the_database_is_ready_on_the_network_before_anything_starts() -> None:
    services = compose()
    check = services["database"]["healthcheck"]["test"]
    assert check[check.index("-h") + 1] == "127.0.0.1"  # the server that initialises the volume has a socket only
    assert "--wait" in services["migrate"]["command"] and services["migrate"]["restart"] == "on-failure:3"


def test_a_password_may_have_any_character() -> None:
    password = "p@ss:w/r d?#%[]"
    environment = compose(POSTGRES_PASSWORD=password)["api"]["environment"]
    assert environment["PGPASSWORD"] == password and password not in environment["REMAT_DATABASE_URL"]
    assert SECRET.search("PGPASSWORD")  # children do not get it


def test_every_variable_is_a_setting_or_one_of_the_object_store() -> None:
    known = {f"REMAT_{name.upper()}" for name in Settings.model_fields}
    for name in OURS:
        set_here = {variable for variable in compose()[name]["environment"] if not variable.startswith("AWS_")}
        assert set_here - {"PGPASSWORD"} <= known  # of the PostgreSQL client
    lines = (ROOT / "deploy" / "objects.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert set(given) <= set(compose()["api"]["environment"])
    assert Settings(blobs_url=given["REMAT_BLOBS_URL"]).blobs_url is not None


def test_what_is_not_always_wanted_has_a_profile_and_what_is_waited_for_is_there() -> None:
    services = compose()
    profiles = {name: service.get("profiles", []) for name, service in services.items()}
    assert {name for name, said in profiles.items() if not said} == {"database", *OURS}
    assert {name for name, said in profiles.items() if said == ["watching"]} == {"prometheus", "grafana", "viewer"}
    assert {name for name, said in profiles.items() if said == ["objects"]} == {"objects", "bucket"}
    for service in services.values():
        waits = service.get("depends_on", {})
        for other, how in waits.items() if isinstance(waits, dict) else []:
            assert other in services
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other]


def test_workers_scale_and_ports_are_open_to_this_machine_alone() -> None:
    services = compose()
    assert "container_name" not in services["worker"] and "ports" not in services["worker"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_files_that_are_mounted_are_there() -> None:
    for service in compose().values():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (ROOT / volume.split(":")[0]).is_file(), volume


def volumes(stage: str) -> list[str]:
    """The volumes of a stage of the Dockerfile."""
    (line,) = re.findall(r"^VOLUME (.*)$", stage, re.MULTILINE)
    named: list[str] = json.loads(line)
    return named


def test_the_image_has_kernels_for_any_processor_and_no_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    build, _, run = text.partition("\nFROM ")[2].partition("\nFROM ")
    assert "NUMBA_CPU_NAME=generic" in build and "NUMBA_CACHE_DIR=/kernels" in build
    assert "NUMBA_CPU_NAME=generic" in run and "NUMBA_CACHE_DIR=/tmp/kernels" in run and "/kernels" not in volumes(run)
    assert (
        "COPY --from=made /kernels /opt/kernels" in run and "/opt/kernels/." in (ROOT / "deploy" / "start").read_text()
    )
    assert "python -m remat.planner.warm" in build
    assert re.findall(r"^USER (.*)$", run, re.MULTILINE) == ["10001:10001"]
    copied = re.findall(r"^COPY (?!--)([\w./-]+) ", text, re.MULTILINE)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() and name in kept for name in copied)


def test_the_start_warms_kernels_for_what_solves_and_runs_what_it_is_given(tmp_path: Path) -> None:
    image, cache = tmp_path / "opt", tmp_path / "cache"
    image.mkdir()
    (image / "kernel.nbi").touch()
    script = (ROOT / "deploy" / "start").read_text()
    assert "/opt/kernels" in script
    (tmp_path / "start").write_text(script.replace("/opt/kernels", str(image)))
    called = tmp_path / "python"
    called.write_text('#!/bin/sh\necho "python $*"\n')
    called.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NUMBA_CACHE_DIR": str(cache)}

    def start(*command: str) -> tuple[str, str]:
        shell = ["sh", str(tmp_path / "start"), *command]
        done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    assert start("echo", "migrate") == ("migrate\n", "") and not cache.exists()
    assert start("echo", "serve") == ("serve\n", "python -m remat.planner.warm\n")
    assert start("echo", "worker", "-x") == ("worker -x\n", "python -m remat.planner.warm\n")
    assert [file.name for file in cache.iterdir()] == ["kernel.nbi"]


def test_every_metric_of_the_dashboard_is_documented() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "remat.json").read_text())
    queries = [target.get("expr", "") for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\b(?:remat|http_server|process)_\w+", query)}
    page = (ROOT / "docs" / "guides" / "monitor-the-service.md").read_text()
    documented = set(re.findall(r"`((?:remat|http|process)_\w+)`", page))
    assert len(asked) >= 12
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked} <= documented


def test_every_metric_of_the_alerts_is_documented_and_prometheus_reads_them() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    page = (ROOT / "docs" / "guides" / "monitor-the-service.md").read_text()
    documented = set(re.findall(r"`((?:remat|http|process)_\w+)`", page))
    for rule in group["rules"]:
        asked = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bremat_\w+", rule["expr"])}
        assert asked <= documented and set(rule["annotations"]) == {"summary"}, rule["alert"]
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    mounted = {volume.split(":")[1] for volume in compose()["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in scraped["rule_files"]} <= mounted


def test_prometheus_and_grafana_find_what_they_ask() -> None:
    services = compose()
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    for job in scraped["scrape_configs"]:
        for found in job["dns_sd_configs"]:
            assert set(found["names"]) <= set(services)
            (name,) = found["names"]
            if name == "api":
                assert str(found["port"]) in services["api"]["command"]
            else:
                assert services[name]["environment"]["REMAT_METRICS_ADDRESS"] == f"0.0.0.0:{found['port']}"
    sources = yaml.safe_load((ROOT / "deploy" / "grafana" / "sources.yml").read_text())["datasources"]
    named = {source["uid"] for source in sources}
    boards = [json.loads((ROOT / "deploy" / "grafana" / name).read_text()) for name in ("remat.json", "savings.json")]
    assert {panel["datasource"]["uid"] for board in boards for panel in board["panels"]} == named
    mounted = {volume.split(":")[0] for volume in services["grafana"]["volumes"]}
    assert {"./deploy/grafana/remat.json", "./deploy/grafana/savings.json"} <= mounted
    assert {re.split(r"[:/]+", source["url"].removeprefix("http://"))[0] for source in sources} <= set(services)


def test_every_panel_of_savings_asks_for_what_there_is(client: TestClient) -> None:
    panels = json.loads((ROOT / "deploy" / "grafana" / "savings.json").read_text())["panels"]
    store, kinds = client.app.state.service.store, Counter[str]()  # type: ignore[attr-defined]
    fill(store, 20, ("resnet50", "lstm"))
    for target in (target for panel in panels for target in panel["targets"]):
        kinds[target["datasource"]["uid"]] += 1
        if "rawSql" in target:
            with store.reading() as connection:
                assert connection.execute(sa.text(target["rawSql"])).all(), target["rawSql"]
            continue
        at = {"${__from:date:iso}": "2020-01-01T00:00:00.000Z", "${__to:date:iso}": "2120-01-01T00:00:00.000Z"}
        asked = {given["key"]: at.get(given["value"], given["value"]) for given in target["url_options"]["params"]}
        rows = client.get(target["url"].removeprefix("http://api:8000"), params=asked).json()[target["root_selector"]]
        assert rows and {column["selector"] for column in target["columns"]} <= rows[0].keys()
    assert kinds["savings"] >= 6 and kinds["service"] >= 1


@contextmanager
def started(service: dict[str, Any], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The service's command as a process of this machine, as the image would run it."""
    program, *arguments = service["command"]
    assert program == "remat"
    process = subprocess.Popen(
        [sys.executable, "-m", "remat", *arguments], env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def commands() -> set[str]:
    return {command.name or command.callback.__name__.replace("_", "-") for command in cli.registered_commands}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["migrate", "api", "worker"])
def test_every_command_is_one_of_the_program(name: str) -> None:
    program, command, *_ = compose()[name]["command"]
    assert program == "remat" and command in commands()


def _require_a_viewer_that_only_reads(url: str) -> None:
    """Run the script that makes the role of Grafana twice, and ask with the role."""
    programs = binaries()
    assert programs is not None
    environment = os.environ | {"VIEWER_PASSWORD": "v'iew$er"}
    script = str(ROOT / "deploy" / "grafana" / "viewer.sql")
    for _ in range(2):
        command = [str(programs / "psql"), "-q", "-v", "ON_ERROR_STOP=1", url, "-f", script]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg", username="viewer"))
    try:
        with engine.connect() as connection:
            for panel in json.loads((ROOT / "deploy" / "grafana" / "savings.json").read_text())["panels"]:
                for target in panel["targets"]:
                    connection.execute(sa.text(target.get("rawSql", "SELECT 1")))
        for refused in ("SELECT * FROM api_keys", "SELECT * FROM plans", "CREATE TABLE x (y int)"):
            with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError):
                connection.execute(sa.text(refused))
    finally:
        engine.dispose()


@pytest.mark.heavy
def test_migrate_waits_for_a_database_that_starts_slowly(postgres: Cluster, tmp_path: Path) -> None:
    place = {"REMAT_DATABASE_URL": postgres.database("slow"), "REMAT_DATA": str(tmp_path / "data")}
    postgres.stop()
    try:
        service = compose()["migrate"]
        with started(service, place) as migrating:
            time.sleep(3)
            assert migrating.poll() is None
            postgres.start()
            assert migrating.wait(60) == 0
        postgres.stop()
        at_once = service | {"command": [*service["command"][:-1], "0"]}
        with started(at_once, place) as migrating:
            assert migrating.wait(60) == 2
    finally:
        postgres.start()


@pytest.mark.heavy
@pytest.mark.parametrize("store_settings", ["postgresql"], indirect=True)
def test_the_same_commands_serve_a_plan_as_processes(store_settings: dict[str, Any], tmp_path: Path) -> None:
    services = compose()
    place = {
        "REMAT_DATABASE_URL": store_settings["database_url"],
        "REMAT_DATA": str(tmp_path / "data"),
        "REMAT_LOG_LEVEL": "warning",
        "OMP_NUM_THREADS": "1",
    }
    assert set(place) - {"REMAT_LOG_LEVEL", "OMP_NUM_THREADS"} <= set(services["api"]["environment"])
    with started(services["migrate"], place) as migrating:
        assert migrating.wait(120) == 0
    _require_a_viewer_that_only_reads(store_settings["database_url"])
    api = services["api"] | {"command": ["0" if word == "8000" else word for word in services["api"]["command"]]}
    with socket.create_server(("127.0.0.1", 0)) as free:
        metrics = f"127.0.0.1:{free.getsockname()[1]}"
    alone = place | {"REMAT_METRICS_ADDRESS": metrics, "REMAT_WORKERS": "1"}
    with started(api, place | {"REMAT_WORKERS": "0"}) as serving, started(services["worker"], alone) as working:
        assert serving.stderr is not None
        found = re.fullmatch(r"listening on http://0\.0\.0\.0:(\d+)\n", serving.stderr.readline())
        assert found is not None
        url = f"http://127.0.0.1:{found[1]}"
        assert httpx2.get(f"{url}/readyz", timeout=60).json() == {"status": "ready"}
        question = {"graph": chain(), "budget": "80%"}
        answer = httpx2.post(f"{url}/v1/plans", json=question, headers={"prefer": "wait=60"}, timeout=120)
        assert answer.status_code == 201, answer.text
        assert 'remat_jobs{state="succeeded"} 1' in httpx2.get(f"{url}/metrics", timeout=60).text
        assert "remat_solve_duration_seconds_count" in httpx2.get(f"http://{metrics}/metrics", timeout=60).text
        assert working.poll() is None  # it alone has solved
