"""A PostgreSQL of one's own: made by the machine's initdb, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

BINARIES = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin"), Path("/usr/bin"))


def binaries() -> Path | None:
    """Folder of initdb and pg_ctl, if there is one."""
    on_path = shutil.which("initdb")
    places = ([Path(on_path).resolve().parent] if on_path else []) + list(BINARIES)
    return next((place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


class Cluster:
    """Listens on loopback. It refuses to run as root, so then it runs as nobody."""

    def __init__(self) -> None:
        found = binaries()
        assert found is not None
        self.bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="remat-postgres-"))
        self.user = 65534 if os.getuid() == 0 else None
        if self.user is not None:
            os.chown(self.folder, self.user, self.user)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._call("initdb", "-U", "remat", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D", self.data)
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        self._call("pg_ctl", "-w", "-D", self.data, "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is what a crash is: nobody is told, and the next start recovers."""
        self._call("pg_ctl", "-w", "-D", self.data, "-m", mode, "stop")

    def database(self, name: str, like: str = "template1") -> str:
        """URL of a new database, empty or a copy of another that nobody is connected to."""
        url = f"postgresql://remat@127.0.0.1:{self.port}"
        self._call("psql", "-q", f"{url}/postgres", "-c", f'CREATE DATABASE "{name}" TEMPLATE "{like}"')
        return f"{url}/{name}"

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def _call(self, program: str, *arguments: str) -> None:
        environment: Mapping[str, str] = {**os.environ, "LC_ALL": "C"}
        ids = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            check=False,
            **ids,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stdout + done.stderr
