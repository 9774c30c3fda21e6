"""Clusters of Dask and of Ray on this machine, each of processes of their own that a test may kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.processes import below

PATIENCE_S = 120.0
ENGINES = ("dask", "ray")


def until(true: Callable[[], Any], seconds: float = PATIENCE_S) -> Any:
    """What `true` returns once it is."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


class LocalCluster:
    """Two workers that run one call at a time each; `start` again after `kill` takes the same address.

    `imports`: folder whose modules come before all others in its processes.
    """

    def __init__(self, engine: str, *more: str, imports: Path | None = None):
        self.engine, self.more = engine, more
        self.imports = imports or Path(__file__).parents[2]
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="remat-", dir="/tmp"))  # short: Ray's sockets lie in it
        self.address = f"{'tcp' if engine == 'dask' else 'ray'}://127.0.0.1:{self.port}"
        self.url = f"{engine}://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        if self.engine == "dask":
            self._run("dask", "scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
            until(lambda: answers(self.port))
            folder = ["--local-directory", str(self.folder)]
            given = ["--nworkers", "2", "--nthreads", "1", *self.more]
            self._run("dask", "worker", self.address, *given, "--no-dashboard", *folder)
        else:
            ports = ["--port", str(free_port()), "--ray-client-server-port", str(self.port)]
            ports += ["--min-worker-port", "0", "--max-worker-port", "0"]
            folder = ["--temp-dir", str(self.folder), "--include-dashboard", "false", "--disable-usage-stats"]
            self._run("ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2", *ports, *folder)
            until(lambda: answers(self.port))

    def calls(self) -> list[int]:
        """Processes that calls run in."""
        found = [(pid, command_of(pid)) for process in self._processes for pid in below(process.pid)]
        if self.engine == "ray":
            return [pid for pid, command in found if command.startswith("ray::call")]
        return [pid for pid, command in found if "spawn_main" in command]

    def kill_worker(self, pid: int) -> None:
        """Kill one process that calls run in."""
        os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """All at once, as a machine that is lost."""
        for process in self._processes:
            for pid in (process.pid, *below(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, module: str, *arguments: str) -> None:
        with (self.folder / f"{arguments[0]}.log").open("ab") as log:
            command: Sequence[str] = [sys.executable, "-m", module, *arguments]
            environment = os.environ | {"PYTHONPATH": str(self.imports), "OMP_NUM_THREADS": "1"}
            environment["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"] = "30s"  # until one that stands still is dead
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )


@contextlib.contextmanager
def cluster_of(engine: str, *more: str, imports: Path | None = None) -> Iterator[LocalCluster]:
    """A cluster that is gone afterwards."""
    cluster = LocalCluster(engine, *more, imports=imports)
    try:
        yield cluster
    finally:
        cluster.close()
