"""Every command of the guide to the service, and of the README about HTTP, runs as it stands there.

Ports, hosts and folders are put in one place, `Session.places`; nothing else of a command is touched.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import onnx
import pytest
import yaml

from tests.app.clusters import ENGINES, cluster_of
from tests.app.conftest import chain
from tests.postgres import Cluster

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0
ASSIGNED = re.compile(r"[A-Z_]+=")
HOSTS = "On three hosts"  # the section that needs PostgreSQL
CLUSTER = "Solve on a cluster"  # the section that needs Dask and Ray
GUIDE = "docs/guides/run-the-service.md"
SECTIONS = {GUIDE: None, "README.md": "HTTP"}  # None: all of the page


def fences() -> Iterator[tuple[str, str, str]]:
    """(page, section, text) of every block without a language: those are commands."""
    for page, only in SECTIONS.items():
        section, opening, block = "", "", list[str]()
        for line in (ROOT / page).read_text().splitlines():
            if line.startswith("```"):
                if opening == "```" and only in (None, section):
                    yield page, section, "\n".join(block)
                opening, block = ("" if opening else line), []
            elif opening:
                block.append(line)
            elif line.startswith("#"):
                section = line.lstrip("# ")


def commands_of(block: str) -> Iterator[str]:
    """Its commands, each of as many lines as its quotes need."""
    begun = ""
    for line in block.splitlines():
        begun += line + "\n"
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:
            continue
        if words:
            yield begun.strip()
        begun = ""
    assert not begun, f"a quote does not end: {begun}"


def program(command: str) -> tuple[str, list[str]]:
    """(name, arguments) of what is run, without the variables in front."""
    words = shlex.split(command, comments=True)
    while ASSIGNED.match(words[0]):
        words.pop(0)
    return words[0], words[1:]


def compose(arguments: list[str]) -> None:
    """Raises unless `docker compose` would find what it is asked about."""
    read = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--profile")
    parser.add_argument("--env-file")
    parser.add_argument("action", choices=["up"])
    parser.add_argument("--scale")
    asked = parser.parse_args(arguments)
    assert asked.profile in {None, *(name for service in read.values() for name in service.get("profiles", []))}
    assert asked.env_file is None or (ROOT / asked.env_file).is_file()
    assert asked.scale is None or asked.scale.partition("=")[0] in read


def docker(arguments: list[str]) -> None:
    """Raises unless Docker would find what it is asked about."""
    if arguments[0] == "compose":
        compose(arguments[1:])
    else:
        container(arguments)


def container(arguments: list[str]) -> None:
    """Raises unless `docker build` and `docker run` of the image give it a volume, a port and a command."""
    both = shlex.join(arguments).split(" '&&' docker ")
    assert both[0] == "build -t remat ."
    parser = ArgumentParser(exit_on_error=False)
    for flag in ("--rm", "--init"):
        parser.add_argument(flag, action="store_true")
    for option in ("-p", "-v"):
        parser.add_argument(option)
    asked, command = parser.parse_known_args(shlex.split(both[1])[1:])
    assert command[:3] == ["remat", "remat", "serve"] and "--no-auth" in command  # the image, then the program
    assert asked.v.endswith(":/data") and asked.p.startswith("127.0.0.1:") and asked.p.endswith(":8000")


def classifier() -> onnx.ModelProto:
    """A model of one layer, of which a training step can be made."""
    tensor = onnx.helper.make_tensor_value_info
    x, y = (tensor(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", [4, 8]), ("y", [4, 10])))
    w = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 10], [0.1] * 80)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    return onnx.helper.make_model(onnx.helper.make_graph([node], "net", [x], [y], [w]))


class Session:
    """A shell in a folder of its own, and the processes that were started from it."""

    def __init__(self, folder: Path, places: dict[str, str]):
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            port, metrics = one.getsockname()[1], other.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.places = places | {
            "localhost:8000": f"127.0.0.1:{port}",
            "one.example:8000": f"127.0.0.1:{port}",
            "--port 8000": f"--port {port}",
            "127.0.0.1:9100": f"127.0.0.1:{metrics}",
            "/var/lib/remat": str(folder / "var"),
        }
        self.folder, self.key = folder, ""
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "REMAT_LOG_LEVEL": "warning",
            "REMAT_DRAIN_SECONDS": "5",
        }
        self._make("remat", f'{sys.executable} -m remat "$@"')
        self._make("curl", f'{shutil.which("curl")} --fail-with-body --max-time {PATIENCE_S:g} "$@"')  # an error is one
        (folder / "request.json").write_text(json.dumps({"graph": chain(3), "budget": "80%", "search_seconds": 1}))
        onnx.save(classifier(), folder / "model.onnx")

    def _make(self, name: str, what: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nexec {what}\n")
        path.chmod(0o755)

    def run(self, command: str) -> None:
        """Do what a reader does with a line of the page. Fails for one that nobody here knows how to run."""
        for said, here in self.places.items():
            command = command.replace(said, here)
        name, arguments = program(command)
        if name == "docker":
            docker(arguments)
        elif name == "export":
            self.environment |= dict(word.split("=", 1) for word in arguments)
        elif (name, arguments[0]) == ("remat", "serve"):
            self._stop("serve")  # who types this has stopped the one before
            self._start("serve", command, r"listening on http://[\d.]+:\d+")
        elif (name, arguments[0]) == ("remat", "worker"):
            cluster = [r"solving on .+"] if "--solve-on" in arguments else []
            self._start(f"worker {len(self.running)}", command, *cluster, r"working as \S+")
        elif name in ("remat", "curl", "createdb"):
            self._done(name, arguments, command)
        else:
            pytest.fail(f"{command!r}: say here how it is run")

    def _done(self, name: str, arguments: list[str], command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command], env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if (name, *arguments[:2]) == ("remat", "keys", "create"):
            self.key = done.stdout.strip()
            self.environment["REMAT_API_KEY"] = self.key
            self.places["0123456789ab"] = self.key.split("_")[1]
        elif "/v1/graphs" in command:
            self.places["GRAPH_ID"] = json.loads(done.stdout)["id"]
        elif "-o rewritten.onnx" in command:
            onnx.checker.check_model(self.folder / "rewritten.onnx")
        elif "/v1/plans" in command:
            answer = json.loads(done.stdout)
            assert answer.keys() & {"plan", "kind"}, done.stdout  # a report, or an operation
            if "plan" in answer:
                self.places["PLAN_ID"] = answer["id"]

    def _start(self, name: str, command: str, *ready: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"],
            env=self.environment,
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running[name] = process
        assert process.stderr is not None
        for line in ready:
            said = process.stderr.readline()
            assert re.fullmatch(line, said.rstrip("\n")), (command, said)
        threading.Thread(target=process.stderr.read, daemon=True).start()

    def _stop(self, name: str) -> None:
        process = self.running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0

    def every_question_is_answered(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            asked = {"authorization": f"Bearer {self.key}"} if self.key else {}
            found = httpx2.get(f"{self.url}/v1/operations", headers=asked, timeout=PATIENCE_S).json()["operations"]
            if found and {operation["state"] for operation in found} == {"succeeded"}:
                return
            assert time.monotonic() < until, found
            time.sleep(0.1)

    def close(self) -> None:
        for name in list(self.running):
            self._stop(name)


def test_every_command_of_the_pages_is_one_that_is_run() -> None:
    found: list[Any] = [(section, command) for _, section, block in fences() for command in commands_of(block)]
    for _, command in found:
        name, arguments = program(command)
        assert name in ("remat", "curl", "docker", "export", "createdb"), (
            f"{command!r}: say in Session.run how it is run"
        )
        if name == "docker":
            docker(arguments)
    sections = [section for section, _ in found]
    assert len(found) >= 20 and sections.count(HOSTS) >= 8 and sections.count(CLUSTER) == 2 and "HTTP" in sections


@pytest.mark.heavy
@pytest.mark.parametrize("page", SECTIONS)
def test_the_commands_for_one_machine_run(page: str, tmp_path: Path) -> None:
    session = Session(tmp_path, {})
    try:
        for where, section, block in fences():
            if where == page and section not in (HOSTS, CLUSTER):
                for command in commands_of(block):
                    session.run(command)
        if page == GUIDE:
            session.key = ""  # it was revoked
            session.run("remat serve --port 8000 --data ./remat-data")
            session.every_question_is_answered()
    finally:
        session.close()


@pytest.mark.heavy
def test_the_commands_for_three_hosts_run(tmp_path: Path, postgres: Cluster) -> None:
    places = {
        "db.example:5432": f"127.0.0.1:{postgres.port}",
        "-h db.example -p 5432": f"-h 127.0.0.1 -p {postgres.port}",
        "s3://remat/blobs": f"file://{tmp_path}/blobs",
    }
    session = Session(tmp_path, places)
    session.environment["PATH"] += f":{postgres.bin}"
    try:
        for _, section, block in fences():
            if section == HOSTS:
                for command in commands_of(block):
                    session.run(command)
        assert len(session.running) == 3
        session.every_question_is_answered()  # and the service itself solves nothing
    finally:
        session.close()


@pytest.mark.clusters
@pytest.mark.parametrize("engine", ENGINES)
def test_the_command_for_a_cluster_runs(engine: str, tmp_path: Path) -> None:
    commands = [command for _, section, block in fences() if section == CLUSTER for command in commands_of(block)]
    (command,) = (command for command in commands if f"{engine}://" in command)
    with cluster_of(engine) as cluster:
        session = Session(
            tmp_path, {"scheduler:8786": f"127.0.0.1:{cluster.port}", "head:10001": f"127.0.0.1:{cluster.port}"}
        )
        try:
            session.run(command)
        finally:
            session.close()
